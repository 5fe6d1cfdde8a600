"""ib.elastic against DeepSpeed, and many questions against one by one; tests/invariants holds it to every batch tried."""

import json
import random

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main
from peers import deepspeed_elasticity


def test_many_is_one_by_one():
    rng = random.Random(5)
    rows = 200
    gpus = [range(rng.randint(1, 9), rng.randint(10, 300)) for _ in range(rows)]
    micros = [rng.sample(range(1, 40), rng.randint(1, 5)) for _ in range(rows)]
    caps = [rng.randint(1, 50_000) for _ in range(rows)]
    nodes = [rng.randint(1, 8) for _ in range(rows)]
    many = ib.elastic(max_batch=caps, micro_batches=micros, gpus=gpus, gpus_per_node=nodes)
    assert len(many) == rows
    for i in range(rows):
        alone = ib.elastic(gpus[i], max_batch=caps[i], micro_batches=micros[i], gpus_per_node=nodes[i])
        assert many[i] == alone
    listed = ib.elastic(
        max_batch=caps, micro_batches=micros, gpus=[list(g) for g in gpus], gpus_per_node=nodes
    )
    assert listed.effective_batch.tolist() == many.effective_batch.tolist()
    assert listed.gpus.tolist() == many.gpus.tolist()


def test_numbers_come_in_any_sequence():
    rows = [[4, 6], [2, 3]]
    expected = ib.elastic(max_batch=[1000, 2000], micro_batches=rows)
    for micros in (
        tuple(map(tuple, rows)),
        np.array(rows),
        [np.array(row) for row in rows],
        [range(4, 7, 2), (2, 3)],
    ):
        found = ib.elastic(max_batch=np.array([1000, 2000]), micro_batches=micros)
        assert [found[i] for i in (0, 1)] == [expected[i] for i in (0, 1)]
    with pytest.raises(
        ib.InputError, match="micro_batches must be whole numbers from 1 to 1,048,576, got float64"
    ):
        ib.elastic(max_batch=[1000, 2000], micro_batches=[[4, 6], [2.0, 3]])
    with pytest.raises(ib.InputError, match="row 2: micro_batches must have at least one value"):
        ib.elastic(max_batch=[1000, 2000], micro_batches=[[4, 6], []])


def test_shared_values_serve_every_row():
    many = ib.elastic(max_batch=[100, 200], micro_batches=[2, 4], gpus=[1, 2, 3, 8], weights=[1, 1, 1, 9])
    assert [many[i].gpus for i in (0, 1)] == [(1, 2, 3, 8), (1, 2, 3, 8)]
    assert many.effective_batch.tolist() == [96, 192]


def test_weights_are_the_sizes_one_really_gets():
    assert 7 not in ib.elastic(range(1, 9), max_batch=48, micro_batches=[4]).gpus
    weights = [1, 1, 1, 1, 1, 1, 50, 1]
    assert 7 in ib.elastic(range(1, 9), max_batch=48, micro_batches=[4], weights=weights).gpus


def test_nothing_works():
    found = ib.elastic([3], max_batch=10, micro_batches=[4])
    assert found == ib.Elastic(effective_batch=None, gpus=(), micro_batch=(), accumulation=(), weight=0.0)
    assert ib.elastic(max_batch=[10], micro_batches=[4], gpus=[3]).effective_batch.tolist() == [-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_batch": 0}, "max_batch must be from 1 to 67,108,864, got 0"),
        ({"max_batch": 2**41}, "got 2199023255552"),
        ({"max_batch": 1.5}, "max_batch must be whole numbers from 1 to 67,108,864, got float64 values"),
        ({"micro_batches": []}, "micro_batches must have at least one value, got none"),
        ({"micro_batches": [4, -1]}, "micro_batches must be from 1 to 1,048,576, got -1"),
        (
            {"micro_batches": [True]},
            "micro_batches must be whole numbers from 1 to 1,048,576, got bool values",
        ),
        ({"gpus": [0, 1]}, "gpus must be from 1 to 1,048,576, got 0"),
        ({"gpus": range(4)}, "gpus must be from 1 to 1,048,576, got 0"),
        ({"gpus": range(4, 4)}, "gpus must have at least one value, got none"),
        ({"gpus": [4, 2, 4]}, "gpus: 4 is listed twice"),
        ({"model_parallel": 0}, "model_parallel must be from 1 to 1,048,576, got 0"),
        ({"gpus_per_node": -8}, "gpus_per_node must be from 1 to 1,048,576, got -8"),
        ({"weights": [1.0]}, "weights must have one value for each of gpus"),
        ({"gpus": [1, 2], "weights": [1.0, float("nan")]}, "weights must be finite and at least 0, got nan"),
        ({"gpus": [1, 2], "weights": [1.0, -1.0]}, "weights must be finite and at least 0, got -1.0"),
    ],
)
def test_bad_input_is_named(change, said):
    with pytest.raises(ib.InputError) as error:
        ib.elastic(**{"gpus": range(1, 9), "max_batch": 100, "micro_batches": [2]} | change)
    assert said in str(error.value)


def test_the_bad_row_is_named():
    with pytest.raises(ib.InputError, match="row 2: micro_batches must be from 1 to 1,048,576, got 0"):
        ib.elastic(max_batch=[10, 20], micro_batches=[[1, 2], [3, 0]])
    with pytest.raises(ib.InputError, match="row 2: gpus must be from 1 to 1,048,576, got 0"):
        ib.elastic(max_batch=[10, 20], micro_batches=[2], gpus=[range(1, 5), range(5)])
    with pytest.raises(ib.InputError, match="gpus must have 3 rows, as max_batch has, got 2"):
        ib.elastic(max_batch=[10, 20, 30], micro_batches=[2], gpus=[range(1, 5), range(1, 5)])


@pytest.mark.peers
def test_never_fewer_counts_than_deepspeed():
    elasticity = deepspeed_elasticity()
    rng = random.Random(0)
    caps, micros, gpus, theirs = [], [], [], []
    while len(caps) < 1000:
        cap = int(np.exp(rng.uniform(np.log(64), np.log(100_000))))
        some = rng.sample(range(1, min(cap, 64) + 1), rng.randint(1, 5))
        most = int(np.exp(rng.uniform(0, np.log(2000))))
        least = rng.randint(1, max(1, most // 4))
        _, counts = elasticity._get_compatible_gpus_v01(
            some, cap, min_gpus=least, max_gpus=most, prefer_larger=True
        )
        caps.append(cap)
        micros.append(some)
        gpus.append(range(least, most + 1))
        theirs.append(len(counts or []))
    many = ib.elastic(max_batch=caps, micro_batches=micros, gpus=gpus)
    ours = np.diff(many.offsets)
    assert (ours >= theirs).all()
    assert (ours > theirs).sum() >= 20
    assert (many.effective_batch <= caps).all()


# ---- on the command line ----


def run(*words):
    return main(["elastic", *words])


def test_prints_the_batch_and_its_counts(capsys):
    assert run("--max-batch", "100", "--micro-batches", "4", "--gpus", "1..8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "effective batch 96 works at 6 GPU counts"
    assert lines[1:3] == ["GPUs  micro-batch  accumulation", "1     4            24"]
    assert lines[-1] == (
        "torchrun --nnodes 1:8 --nproc-per-node 1 (5, 7 nodes do not divide the batch: there ElasticRun needs split='uneven')"
    )


def test_torchrun_gets_whole_nodes(capsys):
    assert run("--max-batch", "64", "--micro-batches", "4", "--gpus", "4,8", "--gpus-per-node", "4") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "torchrun --nnodes 1:2 --nproc-per-node 4"


def test_json_for_programs(capsys):
    words = [
        "--max-batch",
        "100",
        "--micro-batches",
        "2,4",
        "--gpus",
        "2,3,5,7",
        "--weights",
        "1,1,1,9",
        "--json",
    ]
    assert run(*words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["effective_batch"] == 84
    assert found["gpus"] == [2, 3, 7]
    assert (
        run("--max-batch", "100", "--micro-batches", "4", "--prefer-smaller", "--gpus", "2,3", "--json") == 0
    )
    assert json.loads(capsys.readouterr().out)["effective_batch"] == 24


def test_nothing_works_is_a_finding(capsys):
    assert run("--max-batch", "10", "--micro-batches", "4", "--gpus", "3") == 1
    assert "no batch under the cap" in capsys.readouterr().err


def test_not_a_number(capsys):
    assert run("--max-batch", "10", "--micro-batches", "2;4") == 2
    assert "--micro-batches must be a list such as 2,4,6, got '2;4'" in capsys.readouterr().err


def test_counts_that_hold_no_whole_replicas_are_not_called_uneven(capsys):
    """Nine GPUs hold one replica of eight, and split="uneven" does not help there."""
    words = ["--max-batch", "64", "--micro-batches", "2", "--gpus", "8..32", "--model-parallel", "8"]
    assert run(*words, "--gpus-per-node", "4") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "3, 5, 7 nodes are not a whole number of replicas of 8 GPUs: there it cannot run" in last
    assert "uneven" not in last
