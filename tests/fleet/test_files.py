"""Hostile and broken files of jobs."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

import isobatch as ib
from isobatch.cli import main

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
import pyarrow.parquet as pq  # noqa: E402

from isobatch.files.find import find  # noqa: E402
from isobatch.files.read import read_table  # noqa: E402

GOOD = '{"job": "a", "effective_batch": 256, "lr": 0.1}\n'


def test_lines_as_they_are(tmp_path):
    path = tmp_path / "jobs.jsonl"
    rows = [
        {"job": "a", "effective_batch": 256, "lr": 0.1, "policy": "keep", "n": 2**64},
        {"job": "b", "lr": 1, "policy": 512, "effective_batch": 256},
    ]
    path.write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in rows))
    table = read_table(path)
    assert table.column_names == ["job", "effective_batch", "lr", "policy", "n"]
    assert table["lr"].to_pylist() == [0.1, 1.0]
    # Cells without a common type are text, and nothing is rounded.
    assert table["policy"].to_pylist() == ["keep", "512"]
    assert table["n"].to_pylist() in (["18446744073709551616", None], [2**64, None])
    assert ib.plan_fleet(path, [8], columns=["effective_batch"])["effective_batch"].to_pylist() == [256, 512]


@pytest.mark.parametrize("bad", ["null\n", '{"other": 1}\n', GOOD.replace("lr", "learning_rate")])
def test_a_bad_first_file_does_not_condemn_the_others(tmp_path, bad):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "0.jsonl").write_text(bad)
    (jobs / "1.jsonl").write_text(GOOD)
    (jobs / "2.jsonl").write_text(GOOD.replace('"a"', '"b"'))
    manifest = ib.plan_files(jobs, [8], tmp_path / "plans")
    assert list(manifest.failed) == [str(jobs / "0.jsonl")]
    assert manifest.rows == 2
    (jobs / "00.csv").write_text("job,colour\na,red\n")
    assert set(ib.plan_files(jobs, [8], tmp_path / "more").failed) == {
        str(jobs / "0.jsonl"),
        str(jobs / "00.csv"),
    }


def test_a_job_may_be_called_null(tmp_path):
    (tmp_path / "jobs.csv").write_text(
        "job,effective_batch,lr,optimizer,team\nnull,256,0.1,null,NULL\n,128,0.1,,\n"
    )
    rows = ib.plan_fleet(tmp_path / "jobs.csv", [8], columns=["job", "team", "status"]).to_pylist()
    assert rows == [
        {"job": "null", "team": "NULL", "status": "ok"},
        {"job": None, "team": None, "status": "infeasible"},
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.csv", ["a.csv", "b-1.csv"]),
        ("?.csv", ["a.csv"]),
        ("[a-b]*.csv", ["a.csv", "b-1.csv"]),
        ("[!a]*.csv", ["b-1.csv"]),
        ("**/*.csv", ["a.csv", "b-1.csv", "deep/er/c.csv"]),
        ("*/*/*.csv", ["deep/er/c.csv"]),
        ("deep/**", ["deep/er/c.csv"]),
        ("**/er/**/c.csv", ["deep/er/c.csv"]),
    ],
)
def test_globs(tmp_path, pattern, names):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("a.csv", "b-1.csv", "deep/er/c.csv"):
        (tmp_path / name).write_text("x\n")
    paths = [info.path.removeprefix(f"{tmp_path}/") for info in find(tmp_path / pattern).infos]
    assert paths == names


@pytest.mark.parametrize(
    "pattern", ["[z-a].csv", "*" * 200 + "x.csv", "*a" * 100 + ".csv", "**/" * 100 + "x.csv", "[].csv"]
)
def test_globs_that_match_nothing_end_soon(tmp_path, pattern):
    (tmp_path / ("a" * 200 + ".csv")).write_text("x\n")
    start = time.process_time()
    with pytest.raises(ib.InputError):
        read_table(tmp_path / (pattern + "q"))
    assert time.process_time() - start < 5


def test_secrets_of_urls_are_written_nowhere(tmp_path, ran):
    for url in (
        "s3://KEYID:hunter2/x@bucket/jobs.csv",
        "s3://KEYID:hunter2@bucket/jobs.csv?secret_key=hunter2",
    ):
        error = ib.InputError(f"cannot read {url}", file=url)
        assert "hunter2" not in f"{error} {error.file} {error.message}" and "bucket" in str(error)
    words = ["fleet", "gopher://KEYID:hunter2@x/jobs.csv", "gopher://KEYID:hunter2@x/c.csv"]
    assert "hunter2" not in "".join(ran(words, 2))


def test_secrets_of_urls_stay_out_of_the_summary():
    from isobatch.fleet.table import input_table

    side = input_table("cluster", {"nodes": [1]}, file="s3://KEYID:hunter2@bucket/c.csv")
    assert side.where(0) == "cluster 0 (s3://…@bucket/c.csv, row 1)"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    (tmp_path / "job.json").write_text('{"effective_batch": 256, "lr": 0.1}')
    (tmp_path / "clusters.csv").write_text("cluster,nodes,gpus_per_node\ns,1,8\n")
    return tmp_path


def fleet_into(files, path):
    return main(["fleet", str(files / "jobs.csv"), str(files / "clusters.csv"), "-o", str(path)])


def plan_into(files, path):
    return main(["plan", str(files / "job.json"), "--gpus", "8", "-o", str(path)])


@pytest.mark.parametrize(("write", "suffix"), [(fleet_into, ".csv"), (plan_into, ".json")])
def test_pipes_and_links_are_not_replaced(files, capsys, write, suffix):
    pipe, link = files / f"pipe{suffix}", files / f"link{suffix}"
    os.mkfifo(pipe)
    link.symlink_to(files / "target")
    assert write(files, pipe) == 2
    assert "is no regular file" in capsys.readouterr().err
    assert write(files, link) == 2
    assert f"is a symbolic link: give the path it leads to, {files}/target" in capsys.readouterr().err
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink()


@pytest.mark.parametrize(("write", "suffix"), [(fleet_into, ".csv"), (plan_into, ".json")])
def test_a_file_that_is_replaced_keeps_its_mode(files, write, suffix):
    path = files / f"o{suffix}"
    path.touch(0o600)
    assert write(files, path) == 0
    assert path.stat().st_size and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_date_that_no_text_has_is_named(files, capsys):
    days = pa.array([2**31 - 1], pa.date32())
    pq.write_table(
        pa.table({"job": ["a"], "effective_batch": [256], "lr": [0.1], "due": days}), files / "jobs.parquet"
    )
    for output in (["-o", str(files / "o.jsonl")], ["--json"]):
        assert main(["fleet", str(files / "jobs.parquet"), str(files / "clusters.csv"), *output]) == 2
        assert "cannot be written: days=2147483647" in capsys.readouterr().err


def test_formulas_are_escaped_where_that_is_asked_for(files, ran):
    (files / "jobs.csv").write_text('job,effective_batch,lr,=x\n"=cmd()",256,0.1,-1\n@b,256,0.1,a=b\n')
    words = [
        "fleet",
        str(files / "jobs.csv"),
        str(files / "clusters.csv"),
        "--columns",
        "job,=x,nearest_batch",
    ]
    assert ran([*words, "--escape-formulas"]).out.splitlines() == [
        '''"job","'=x","nearest_batch"''',
        """"'=cmd()","'-1",""",
        """"'@b","a=b",""",
    ]
    assert '"=cmd()","-1"' in ran(words).out


def test_broken_text_in_parquet_is_named(files, capsys):
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    for column in ("optimizer", "job", "team"):
        jobs = {"job": pa.array(["a"]), "effective_batch": [256], "lr": [0.1], column: broken}
        pq.write_table(pa.table(jobs), files / "jobs.parquet")
        for output in (["-o", str(files / "o.jsonl")], ["-o", str(files / "o.parquet")], ["--json"]):
            words = ["fleet", str(files / "jobs.parquet"), str(files / "clusters.csv"), *output]
            assert main(words) in (0, 2)
            assert "a fault of isobatch itself" not in capsys.readouterr().err


def test_a_deep_line_does_not_end_the_process(tmp_path):
    (tmp_path / "jobs.jsonl").write_text('{"a": ' * 50_000 + "1" + "}" * 50_000)
    program = "import sys; from isobatch.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["fleet", str(tmp_path / "jobs.jsonl"), str(tmp_path / "jobs.jsonl")]
    process = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 2
    assert "row 1: is no JSON object: nested too deep" in process.stderr
