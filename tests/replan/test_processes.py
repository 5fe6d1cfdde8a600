"""A real run over gloo that stops, moves to another world size, and goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="trains in real processes")

RECIPE = ib.Recipe(
    effective_batch=12, lr=0.5, optimizer="sgd", dataset_size=120, duration="3ep", warmup="5st", schedule="linear"
)


def part(folder, plan, until):
    """Runs a process a GPU until optimizer step `until`; gives what each noted."""
    plan.save(folder / "plan.json")
    script = str(Path(__file__).with_name("two_processes.py"))
    processes = [
        subprocess.Popen([sys.executable, script, str(folder), str(rank), str(until)])
        for rank in range(plan.world_size)
    ]
    try:
        assert [process.wait(timeout=240) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"note-{until}-{rank}.json").read_text()) for rank in range(plan.world_size)]


def moved(folder, parts):
    """Trains through `parts` of (step until which, the plan from the one before); gives notes and plans."""
    notes, plan, plans = [], None, []
    for until, make in parts:
        plan = make(plan)
        assert plan.status != "infeasible"
        plans.append(plan)
        notes.append(part(folder, plan, until))
    return notes, plans


def check(notes, plans):
    seen = sorted(tuple(one) for part in notes for note in part for one in note["seen"])
    assert seen == [(epoch, sample) for epoch in range(3) for sample in range(120)]
    rates = [rate for part in notes for rate in part[0]["rates"]]
    assert rates == pytest.approx([plans[-1].lr_at(step) for step in range(plans[-1].total_steps)], rel=1e-12)
    for part, plan in zip(notes[1:], plans[1:], strict=True):
        assert {tuple(note["place"]) for note in part} == {(plan.moves[-1].epoch, plan.moves[-1].offset)}
    for part in notes:
        assert len({note["weight"] for note in part}) == 1


def test_two_processes_then_one(tmp_path):
    first = ib.plan(RECIPE, 2, max_micro_batch=3)
    notes, plans = moved(
        tmp_path,
        [
            (14, lambda _: first),
            (30, lambda plan: ib.replan(plan, at_step=14, cluster=1)),
        ],
    )
    check(notes, plans)
    # Every step saw the same samples as without the move: so did the weight, but for the order of sums.
    (tmp_path / "still").mkdir()
    still = part(tmp_path / "still", first, 30)
    assert notes[-1][0]["weight"] == pytest.approx(still[0]["weight"], rel=1e-12)
    assert notes[-1][0]["weight"] != pytest.approx(3, rel=1e-12)


@pytest.mark.slow
def test_two_then_three_of_another_batch_then_an_uneven_five(tmp_path):
    notes, plans = moved(
        tmp_path,
        [
            (13, lambda _: ib.plan(RECIPE, 2, max_micro_batch=3)),
            (17, lambda plan: ib.replan(plan, at_step=13, cluster=3, effective_batch=24)),
            (23, lambda plan: ib.replan(plan, at_step=17, cluster=5, uneven=True, effective_batch=12)),
        ],
    )
    assert plans[-1].total_steps == 26
    check(notes, plans)
