"""Rows of a fleet in words: the same whatever the table is, and what the command asks for."""

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")

JOBS = {
    "job": ["a", "b"],
    "effective_batch": [256, 256],
    "lr": [0.1, 0.1],
    "gpus": [8, 8],
    "micro_batch": [32, 32],
    "duration": ["100st", "100st"],
    "warmup": ["10st", "10st"],
    "batch_norm": [False, True],
}
CLUSTERS = {"cluster": ["small", "large", "odd"], "nodes": [1, 8, 1], "gpus_per_node": [8, 8, 3]}


def plans(tmp_path, name="plans.parquet", **settings):
    """A table of plans as it is written, read back."""
    for file, rows in (("jobs.csv", JOBS), ("clusters.csv", CLUSTERS)):
        csv.write_csv(pa.table(rows), tmp_path / file)
    path = tmp_path / name
    asked = [word for option, value in settings.items() for word in (f"--{option}", str(value))]
    assert (
        main(["fleet", str(tmp_path / "jobs.csv"), str(tmp_path / "clusters.csv"), "-o", str(path), *asked])
        == 0
    )
    return path


def test_a_row_in_words(tmp_path):
    from isobatch.files.read import read_table

    arrow = read_table(plans(tmp_path))
    text = read_table(plans(tmp_path, "plans.csv"))
    texts = [ib.explain(arrow, row) for row in range(6)]
    assert texts == [ib.explain(text, row) for row in range(6)]
    assert texts[0].splitlines()[:4] == [
        "job a, cluster small, 8 GPUs: caution",
        "Micro-batch 32 × accumulation 1 × 8 replicas: 256 samples per step.",
        "Learning rate 0.1, as tuned.",
        "The run: 100 steps, 10 of them warmup.",
    ]
    assert "Nearest that works: 2 GPUs; or a batch of" in texts[2]
    assert "[Goyal et al. 2017" in texts[4] and "Warnings:" in texts[4]
    grown = ib.plan_fleet(JOBS | {"job": np.arange(2)}, [64], policy="grow", rule="linear")
    assert "Learning rate 0.8, 8 × the tuned one." in ib.explain(grown, 0)
    assert "2,048 samples per step (+700 % of the tuned batch)" in ib.explain(grown, 0)


@pytest.mark.parametrize(
    ("table", "row", "says"),
    [
        ({"status": ["ok"], "reasons": [0]}, 1, "row must be from 0 to 0, got 1"),
        ({"status": ["ok"], "reasons": [0]}, "1", "row must be a whole number"),
        ({"lr": [1]}, 0, "has no column 'status'"),
        ({"status": ["ok"], "reasons": ["red"]}, 0, "reasons, as a fleet's table has them"),
        ("plans.csv", 0, "table must be a table of plans"),
        ({"status": 1, "reasons": 2}, 0, "table must be a table of plans"),
    ],
)
def test_what_is_no_row(table, row, says):
    with pytest.raises(ib.InputError, match=says):
        ib.explain(table, row)


def test_the_command_shows_what_is_asked_for(tmp_path, capsys):
    path = str(plans(tmp_path))
    capsys.readouterr()
    assert main(["explain", path, "--job", "b", "--gpus", "64"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("job b, cluster large, 64 GPUs: caution\n") and out.count("job ") == 1
    assert main(["explain", path, "--cluster", "odd"]) == 1
    assert capsys.readouterr().out.count("Nearest that works") == 2
    assert main(["explain", path, "--job", "bb"]) == 2
    assert "--job" in capsys.readouterr().err
    assert main(["explain", path, "--gpus", "16"]) == 2
    assert "--gpus" in capsys.readouterr().err


def test_a_count_that_is_no_whole_nodes_is_said_to_be_none():
    jobs = {"effective_batch": [100], "lr": [0.1]}
    for gpus, said in ((24, "25 GPUs (no whole nodes of 8); or"), (7, "5 GPUs; or"), (30, "25 GPUs; or")):
        assert f"Nearest that works: {said}" in ib.explain(ib.plan_fleet(jobs, [gpus]), 0)
