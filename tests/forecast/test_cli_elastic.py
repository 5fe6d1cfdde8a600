"""isobatch elastic on the command line."""

import json

from isobatch.cli import main


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
