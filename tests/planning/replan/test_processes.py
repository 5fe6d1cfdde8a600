"""A real run over gloo: it stops, moves to another world size, and goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import isobatch as ib
from plan_of import plan_of

pytest.importorskip("torch", reason="trains in real processes")

RUN = {"effective_batch": 12, "lr": 0.5, "optimizer": "sgd", "dataset_size": 120, "duration": "3ep"}
FIRST = plan_of(2, **RUN, warmup="5st", schedule="linear", max_micro_batch=3)


def trained(*runs):
    """Trains runs, each a folder and its parts as (last step, plan), and returns the notes of each run."""
    for folder, parts in runs:
        folder.mkdir()
        for until, plan in parts:
            assert plan.status != "infeasible"
            plan.save(folder / f"plan-{until}.json")
    script = str(Path(__file__).with_name("two_processes.py"))
    subprocess.run([sys.executable, script, *(str(folder) for folder, _ in runs)], check=True, timeout=280)
    return [
        [
            [
                json.loads((folder / f"note-{until}-{rank}.json").read_text())
                for rank in range(plan.world_size)
            ]
            for until, plan in parts
        ]
        for folder, parts in runs
    ]


def check(notes, plans):
    samples = sorted(tuple(pair) for part in notes for note in part for pair in note["seen"])
    assert samples == [(epoch, sample) for epoch in range(3) for sample in range(120)]
    rates = [rate for part in notes for rate in part[0]["rates"]]
    assert rates == pytest.approx([plans[-1].lr_at(step) for step in range(plans[-1].total_steps)], rel=1e-12)
    for part, plan in zip(notes[1:], plans[1:], strict=True):
        assert {tuple(note["place"]) for note in part} == {(plan.moves[-1].epoch, plan.moves[-1].offset)}
    for part in notes:
        assert len({note["weight"] for note in part}) == 1


def test_two_processes_stop_and_go_on_elsewhere(tmp_path):
    alone = ib.replan(FIRST, at_step=14, cluster=1)
    moved, still = trained(
        (tmp_path / "moved", [(14, FIRST), (30, alone)]), (tmp_path / "still", [(30, FIRST)])
    )
    check(moved, [FIRST, alone])
    # Every step saw the same samples as without the move: so did the weight, but for the order of sums.
    assert moved[-1][0]["weight"] == pytest.approx(still[-1][0]["weight"], rel=1e-12)
    assert moved[-1][0]["weight"] != pytest.approx(3, rel=1e-12)


@pytest.mark.slow
def test_to_another_batch_and_to_five_that_do_not_divide(tmp_path):
    larger = ib.replan(FIRST, at_step=13, cluster=3, effective_batch=24)
    uneven = ib.replan(larger, at_step=15, cluster=5, effective_batch=12, split="uneven")
    (notes,) = trained((tmp_path / "run", [(13, FIRST), (15, larger), (uneven.total_steps, uneven)]))
    check(notes, [FIRST, larger, uneven])
