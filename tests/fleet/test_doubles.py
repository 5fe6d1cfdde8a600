"""Two jobs with one id, in one table or far apart in files of several blocks."""

import random
from collections import Counter

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")

from isobatch.fleet import ids as id_module  # noqa: E402
from isobatch.fleet import stream  # noqa: E402


@pytest.fixture(autouse=True)
def in_blocks(monkeypatch):
    """Of eight jobs."""
    monkeypatch.setattr(stream, "BLOCK_ROWS", 8)


def written(path, ids):
    path.write_text("".join(["job,effective_batch,lr\n", *(f"{name},256,0.1\n" for name in ids)]))
    return str(path)


def planned(*words):
    return main(["fleet", *map(str, words), "--gpus", "8", "--columns", "job,micro_batch"])


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl"])
def test_a_doubled_id_is_found_over_the_whole_file(tmp_path, capsys, suffix):
    jobs = written(tmp_path / "jobs.csv", [*range(30), 3, *range(40, 90)])
    plans = tmp_path / f"plans.{suffix}"
    assert planned(jobs, "-o", plans) == 2
    assert f"{jobs}, row 31: duplicate job id '3' (also in row 4)" in capsys.readouterr().err
    assert not plans.exists()
    written(tmp_path / "jobs.csv", range(90))
    assert planned(jobs, "-o", plans) == 0 and plans.exists()


def test_on_stdout_it_is_said_at_the_end(tmp_path, capsys):
    assert planned(written(tmp_path / "jobs.csv", [*range(30), 0])) == 2
    assert "row 31: duplicate job id '0' (also in row 1)" in capsys.readouterr().err


def test_in_two_files(tmp_path, capsys):
    (tmp_path / "jobs").mkdir()
    first = written(tmp_path / "jobs" / "a.csv", range(20))
    second = written(tmp_path / "jobs" / "b.csv", [*range(20, 40), 11])
    assert planned(tmp_path / "jobs", "-o", tmp_path / "plans.csv") == 2
    assert f"{second}, row 21: duplicate job id '11' (also in {first}, row 12)" in capsys.readouterr().err


def test_ids_that_are_missing_are_no_doubles(tmp_path, capsys):
    jobs = written(tmp_path / "jobs.csv", ["", *range(20), "", "", *range(20, 30)])
    assert planned(jobs) == 0
    assert "3  invalid_id" in capsys.readouterr().err
    written(tmp_path / "jobs.csv", ["", *range(20), "", "", *range(20, 30), 25])
    assert planned(jobs) == 2
    assert "row 34: duplicate job id '25' (also in row 29)" in capsys.readouterr().err


def test_two_ids_with_one_hash_are_two(tmp_path, capsys, monkeypatch):
    collide = lambda ids: np.array([int(name) % 4 for name in ids.to_pylist()], np.int64)  # noqa: E731
    monkeypatch.setattr(stream, "hashes_of", collide)
    jobs = written(tmp_path / "jobs.csv", range(40))
    assert planned(jobs) == 0
    written(tmp_path / "jobs.csv", [*range(40), 17])
    assert planned(jobs) == 2
    assert "row 41: duplicate job id '17' (also in row 18)" in capsys.readouterr().err


def test_rows_with_their_own_clusters_may_name_a_job_twice(tmp_path):
    jobs = tmp_path / "jobs.csv"
    rows = [f"{n % 10},256,0.1,{1 + n // 10}" for n in range(30)]
    jobs.write_text("\n".join(["job,effective_batch,lr,nodes", *rows, ""]))
    assert main(["fleet", str(jobs), "-o", str(tmp_path / "plans.csv")]) == 0


def test_beyond_a_limit_it_says_that_it_does_not_look(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stream, "MAX_HASHED_IDS", 20)
    assert planned(written(tmp_path / "jobs.csv", [*range(50), 0])) == 0
    assert capsys.readouterr().err.count("duplicate ids are only detected among the first 20 jobs only") == 1


@pytest.mark.parametrize("seed", range(5))
def test_hashes_in_blocks_agree_with_a_set(seed):
    chance = random.Random(seed)
    hashed, counts = [], Counter()
    for _ in range(60):
        block = chance.sample(range(2000), chance.randint(0, 12))
        counts.update(block)
        hashed.append(np.array(block, dtype=np.int64))
    assert set(id_module.duplicates(hashed).tolist()) == {
        value for value, count in counts.items() if count > 1
    }


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "b", "c"],
        [1, 2, 2**63 - 1],
        np.array([1, 2**64 - 1], np.uint64),
        [0.5, 1.5],
        np.array(["a", 1], dtype=object),
        pa.chunked_array([["a"], ["b"]]),
        pa.chunked_array([pa.array(["a", "b"]).dictionary_encode()]),
        pa.chunked_array([pa.array([-1, -2])]),
        pa.chunked_array([pa.array([1, 2], pa.uint64())]),
    ],
)
def test_ids_of_any_kind(ids):
    ids = np.array(ids) if isinstance(ids, list) else ids
    is_arrow = hasattr(ids, "to_pylist")
    if is_arrow:  # as all ids of files are
        assert len(set(id_module.hashes_of(ids).tolist())) == len(ids)
    table = {"job": ids, "effective_batch": [256] * len(ids), "lr": [0.1] * len(ids)}
    names = ib.plan_fleet(pa.table(table) if is_arrow else table, [8])["job"]
    lists = [each.to_pylist() if is_arrow else each.tolist() for each in (ids, names)]
    assert list(map(str, lists[0])) == list(map(str, lists[1]))
