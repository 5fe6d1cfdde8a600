"""The effective batch for the most GPU counts: every batch tried, limits, and what the command says of it."""

import json
import random

import numpy as np
import pytest

import isobatch as ib
from isobatch.fleet.best_batch import best_batch

RECIPE = ib.Recipe(effective_batch=256, lr=0.1)
SHARED = ib.Cluster(gpus_per_node=1)


def tried(replicas, max_batch, micro_batches, multiple):
    """Returns the batch and the split at each count, by trying every batch, count and micro-batch."""
    best, most = None, 0
    for batch in range(multiple, max_batch + 1, multiple):
        splits = []
        for count in replicas:
            works = [micro for micro in micro_batches if count and batch % (count * micro) == 0]
            splits.append((max(works), batch // (count * max(works))) if works else (-1, -1))
        working = sum(micro > 0 for micro, _ in splits)
        if working and working >= most:
            best, most = (batch, splits), working
    return best


def test_no_batch_under_the_limit_works_at_more_counts():
    draw = random.Random(7)
    for _ in range(150):
        question = (
            draw.sample(range(70), draw.randint(1, 12)),
            draw.choice([1, 7, 100, 300]),
            draw.sample(range(1, 20), draw.randint(1, 4)),
            draw.choice([1, 1, 6]),
        )
        best = best_batch(np.array(question[0]), *question[1:])
        expected = tried(*question)
        if expected is None:
            assert best is None, question
            continue
        splits = [*zip(best.micro_batch.tolist(), best.accumulation.tolist(), strict=True)]
        assert (best.batch, splits) == expected, question


def test_counts_of_no_whole_replicas_do_not_count():
    eights = ib.Cluster(gpus_per_node=4, model_parallel=8)
    counts = ib.counts(RECIPE, [4, 8, 12, 16, 24], cluster=eights, best_batch_up_to=12, micro_batches=[2])
    assert counts.best_batch == 12
    assert counts.columns["best_micro_batch"].tolist() == [-1, 2, -1, 2, 2]
    assert counts.columns["best_accumulation"].tolist() == [-1, 6, -1, 3, 2]


def test_without_a_list_any_split_works():
    counts = ib.counts(RECIPE, range(1, 13), cluster=SHARED, best_batch_up_to=1000)
    assert counts.best_batch == 840 and (840 % np.arange(1, 13) == 0).sum() == 10
    assert ib.counts(RECIPE, range(1, 13), best_batch_up_to=1000, batch_multiple=9).best_batch == 720


def test_max_batch_is_the_plans_own_limit_in_counts_too():
    for keywords in ({}, {"policy": "keep"}):
        counts = ib.counts(RECIPE, [1, 2], max_batch=100, **keywords)
        assert counts.best_batch is None and "best_micro_batch" not in counts.columns
        assert counts.columns["status"].tolist() == ["infeasible"] * 2
    with pytest.raises(ib.InputError, match="best_batch_up_to goes without a policy"):
        ib.counts(RECIPE, [1, 2], best_batch_up_to=100, policy="keep")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"best_batch_up_to": 0}, "best_batch_up_to must be a whole number from 1 to 67,108,864, got 0"),
        ({"best_batch_up_to": 2**26 + 1}, "best_batch_up_to must be a whole number from 1 to 67,108,864"),
        ({"best_batch_up_to": 1.5}, "best_batch_up_to must be a whole number from 1, got 1.5"),
        ({"micro_batches": []}, "micro_batches must be a whole number from 1"),
        (
            {"micro_batches": [4, -1]},
            "row 2: micro_batches must be a whole number from 1 to 67,108,864, got -1",
        ),
        ({"best_batch_up_to": None}, "micro_batches must come with best_batch_up_to"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ib.InputError, match=message):
        ib.counts(RECIPE, [1, 2], **{"best_batch_up_to": 100, "micro_batches": [2]} | change)


def test_the_command_names_the_batch_and_its_counts(tmp_path, ran):
    RECIPE.save(tmp_path / "job.json")
    words = ["counts", str(tmp_path / "job.json"), "--gpus", "1..8", "--best-batch-up-to", "100"]
    shown = ran([*words, "--micro-batches", "4"])
    assert (
        "effective batch 96 works at 6 GPU counts, the most of any up to 100: 1, 2, 3, 4, 6, 8; "
        f"isobatch plan {tmp_path}/job.json --policy 96 --gpus 1 plans it" in shown.err
    )
    rows = [json.loads(line) for line in ran([*words, "--micro-batches", "4,6", "--json"]).out.splitlines()]
    assert {row["best_batch"] for row in rows} == {96}
    assert [row["best_micro_batch"] for row in rows] == [6, 6, 4, 6, None, 4, None, 6]
    assert [row["best_accumulation"] for row in rows] == [16, 8, 8, 4, None, 4, None, 2]


def test_no_batch_works_is_said(tmp_path, ran):
    RECIPE.save(tmp_path / "job.json")
    words = ["counts", str(tmp_path / "job.json"), "--gpus", "3", "--best-batch-up-to", "10"]
    words += ["--micro-batches", "4"]
    assert "no batch up to 10 works at any of these GPU counts" in ran(words, code=1).err
