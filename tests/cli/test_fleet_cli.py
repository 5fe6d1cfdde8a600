"""`isobatch fleet`: files in, files out, whole or not at all."""

import csv
import io
import json

import pytest

from isobatch.cli import main

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
import pyarrow.parquet as pq  # noqa: E402

JOBS = """\
job,effective_batch,lr,optimizer,duration,dataset_size,team,betas
007,256,0.1,sgd,90ep,1281167,x,
b,1024,nan,adamw,100st,,y,"0.9,0.95"
c,1000,0.1,adamw,100q,,,
d,abc,0.1,adamw,100st,,z,
"""
CLUSTERS = "cluster,nodes,gpus_per_node,region\nsmall,1,8,eu\nlarge,8,8,us\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "clusters.csv").write_text(CLUSTERS)
    return tmp_path


def fleet(files, *words):
    return main(["fleet", str(files / "jobs.csv"), str(files / "clusters.csv"), *words])


def test_rows_keep_their_order_and_carry_their_columns(files, capsys):
    assert fleet(files, "--columns", "job,cluster,region,team,status,reasons,micro_batch,lr") == 0
    captured = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    pairs = [(job, cluster) for job in ("007", "b", "c", "d") for cluster in ("small", "large")]
    assert [(row["job"], row["cluster"]) for row in rows] == pairs
    assert rows[0] == {
        "job": "007", "cluster": "small", "region": "eu", "team": "x",
        "status": "ok", "reasons": "", "micro_batch": "32", "lr": "0.1",
    }  # fmt: skip
    reasons = [row["reasons"].removeprefix("invalid_") for row in rows[2:]]
    assert reasons == ["lr", "lr", "length", "length", "batch", "batch"]
    assert "8 rows: 2 feasible, 6 infeasible" in captured.err
    first = f"first in job b ({files}/jobs.csv, row 2), cluster small ({files}/clusters.csv, row 1): "
    assert first + "lr must be a finite number above 0, got the text 'nan'" in captured.err


def test_strict_is_exit_1(files):
    assert fleet(files, "-o", str(files / "o.csv")) == 0
    assert fleet(files, "-o", str(files / "o.csv"), "--strict") == 1


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_outputs_hold_the_same(files, suffix):
    out = files / f"o.{suffix}"
    assert fleet(files, "-o", str(out)) == 0
    if suffix == "parquet":
        table = pq.read_table(out)
        assert json.loads(table.schema.metadata[b"isobatch.settings"])["policy"] == "keep"
        rows = table.to_pylist()
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["job"] for row in rows] == ["007", "007", "b", "b", "c", "c", "d", "d"]
    assert [str(row["micro_batch"] or None) for row in rows[:3]] == ["32", "4", "None"]
    assert sorted(p.name for p in files.iterdir()) == sorted(["jobs.csv", "clusters.csv", out.name])


def test_parquet_and_jsonl_in(files):
    jobs = pa.table({"job": ["a"], "effective_batch": [256], "lr": [0.1], "betas": [[0.9, 0.95]]})
    pq.write_table(jobs, files / "jobs.parquet")
    (files / "jobs.jsonl").write_text(
        '{"job": "a", "effective_batch": 256, "lr": 0.1, "betas": [0.9, 0.95]}\n'
    )
    plans = []
    for kind in ("parquet", "jsonl"):
        out = files / f"{kind}.csv"
        assert main(["fleet", str(files / f"jobs.{kind}"), str(files / "clusters.csv"), "-o", str(out)]) == 0
        plans.append(out.read_text())
    assert plans[0] == plans[1] and "0.95" in plans[0]


def test_a_folder_and_a_glob_are_one_table(files, capsys):
    folder = files / "jobs"
    folder.mkdir()
    (folder / "1.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    (folder / "2.csv").write_text("job,effective_batch,lr\nb,512,0.1\n")
    for source in (folder, folder / "*.csv"):
        assert main(["fleet", str(source), str(files / "clusters.csv"), "--columns", "job"]) == 0
        assert capsys.readouterr().out.split() == ['"job"', '"a"', '"a"', '"b"', '"b"']


def test_pairs(files, capsys):
    (files / "pairs.csv").write_text("job,cluster\n007,large\n")
    assert fleet(files, "--pairs", str(files / "pairs.csv"), "--columns", "job,micro_batch") == 0
    assert capsys.readouterr().out == '"job","micro_batch"\n"007",4\n'
    (files / "pairs.csv").write_text("job,cluster\n007,huge\n")
    assert fleet(files, "--pairs", str(files / "pairs.csv")) == 2
    assert "pairs.csv, row 1: there is no cluster 'huge'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("jobs.csv", "", "the file is empty"),
        ("jobs.csv", "job,effective_batch,lrr\na,1,0.1\n", "lr is missing: rename 'lrr'?"),
        ("jobs.csv", "job,effective_batch,lr\na,1,0.1\na,2,0.1\n",
            "row 2: duplicate job id 'a' (also in row 1)"),
        ("jobs.csv", "job,job,effective_batch,lr\na,1,1,0.1\n", "the column 'job' is in the header twice"),
        ("jobs.csv", "job,effective_batch,lr\na,1\n", "row 1: has 2 cells for 3 columns"),
        ("clusters.csv", "cluster,node\na,1\n", "nodes is missing: rename 'node'?"),
        ("jobs.csv", "effective_batch,lr,total_steps\n1,0.1,2\n",
            "total_steps is a column of the jobs and of the result"),
        ("jobs.csv", "effective_batch,lr,region\n1,0.1,2\n",
            "region is a column of the clusters and of the jobs"),
    ],
)  # fmt: skip
def test_a_bad_table_is_named_and_leaves_no_output(files, capsys, name, text, message):
    (files / name).write_text(text)
    assert fleet(files, "-o", str(files / "o.parquet")) == 2
    assert message in capsys.readouterr().err
    assert len(list(files.iterdir())) == 2


def test_a_truncated_parquet_file_is_named(files, ran):
    whole = files / "jobs.parquet"
    pq.write_table(pa.table({"effective_batch": [256] * 1000, "lr": [0.1] * 1000}), whole)
    whole.write_bytes(whole.read_bytes()[:-200])
    assert "jobs.parquet: cannot be read" in ran(["fleet", str(whole), str(files / "clusters.csv")], 2).err
    words = ["fleet", str(files / "none.csv"), str(files / "clusters.csv")]
    assert "none.csv: there is no such file" in ran(words, 2).err


def test_an_empty_table_gives_an_empty_result(files):
    (files / "jobs.csv").write_text("job,effective_batch,lr\n")
    assert fleet(files, "-o", str(files / "o.parquet")) == 0
    assert pq.read_table(files / "o.parquet").num_rows == 0


def test_a_broken_write_leaves_nothing(files, monkeypatch):
    import isobatch.files.write

    monkeypatch.setattr(isobatch.files.write.JsonLines, "__call__", lambda *_: 1 / 0)
    assert fleet(files, "-o", str(files / "o.jsonl")) == 3
    assert len(list(files.iterdir())) == 2


@pytest.mark.parametrize("name", ["jobs.csv", "clusters.csv", "pairs.csv"])
def test_an_input_file_is_not_written_over(files, monkeypatch, capsys, name):
    (files / "pairs.csv").write_text("job,cluster\n007,small\n")
    before = (files / name).read_bytes()
    monkeypatch.chdir(files)
    assert fleet(files, "--pairs", "pairs.csv", "-o", f"./{name}") == 2
    assert f"{name}: is read by this command" in capsys.readouterr().err
    assert (files / name).read_bytes() == before


def test_plans_do_not_become_the_next_runs_jobs(files, ran):
    words = ["fleet", str(files), str(files / "clusters.csv"), "-o", str(files / "plans.parquet")]
    assert "is in the folder that is read" in ran(words, 2).err


@pytest.mark.parametrize("words", [[], ["-o", "o.csv"], ["-o", "o.tsv"]])
def test_a_column_that_is_no_text_is_named(files, monkeypatch, ran, words):
    monkeypatch.chdir(files)
    job = {"job": "a", "effective_batch": 256, "lr": 0.1}
    (files / "jobs.jsonl").write_text(json.dumps(job | {"team": {"x": 1}}))
    message = "cannot be written: column 'team' is no text, but Parquet and JSON lines can hold it"
    assert message in ran(["fleet", "jobs.jsonl", "clusters.csv", *words], 2).err
    (files / "jobs.jsonl").write_text(json.dumps(job | {"tags": ["x", None]}) + "\n")
    assert "column 'tags' is no text" in ran(["fleet", "jobs.jsonl", "clusters.csv", *words], 2).err
    assert not list(files.glob("o.*"))
    assert main(["fleet", "jobs.jsonl", "clusters.csv", "-o", "o.parquet"]) == 0
    assert pq.read_table("o.parquet")["tags"].to_pylist() == [["x", None]] * 2


def test_a_missing_value_of_a_row_is_named(tmp_path, ran):
    (tmp_path / "jobs.csv").write_text("effective_batch,lr\n64,0.1\n,0.1\n64,\n")
    output = ran(["fleet", str(tmp_path / "jobs.csv"), "--gpus", "8", "-o", str(tmp_path / "plans.csv")]).err
    assert (
        "row 2), cluster 8 (row 1): effective_batch is missing: it must be a whole number from 1 to 2^40"
        in output
    )
    assert "row 3), cluster 8 (row 1): lr is missing: it must be a finite number above 0" in output


@pytest.mark.parametrize("side", ["jobs", "clusters"])
@pytest.mark.parametrize("output", ["plans.csv", "plans"])
def test_an_option_that_a_column_replaces_is_named(side, output, tmp_path, ran):
    own = {"jobs": "", "clusters": ""} | {side: "rule,batch_tolerance"}
    for name, (head, row) in {
        "jobs": ("job,effective_batch,lr", "a,256,0.1"),
        "clusters": ("cluster,nodes", "b,1"),
    }.items():
        more = (f",{own[name]}", ",linear,0.1") if own[name] else ("", "")
        (tmp_path / f"{name}.csv").write_text(f"{head}{more[0]}\n{row}{more[1]}\n")
    words = [
        "fleet",
        str(tmp_path / "jobs.csv"),
        str(tmp_path / "clusters.csv"),
        "-o",
        str(tmp_path / output),
    ]
    replaced = ran([*words, "--rule", "sqrt", "--policy", "512"]).err
    assert "--rule (rule=) is only used in rows whose own column rule is empty" in replaced
    assert "--batch-tolerance" not in replaced and "--policy" not in replaced
    again = ["--no-resume"] if output == "plans" else []
    assert "is only used in rows" not in ran([*words, "--policy", "512", *again]).err


def test_numbers_of_gpus_name_their_clusters(files, ran):
    words = ["fleet", str(files / "jobs.csv"), "--columns", "cluster,world_size"]
    for more, rows in (
        (["--gpus", "8,7,8"], ["8,8", "7,7"]),
        (["--gpus", "16,8", "--gpus-per-node", "8"], ["16,16", "8,8"]),
    ):
        assert ran([*words, *more]).out.splitlines()[1:3] == rows
    odd = ran([*words, "--gpus", "8..17"])
    assert odd.out.splitlines()[1:6] == ["8,8", "9,9", "10,10", "11,11", "12,12"]
    assert "planned as one node each: 8 GPU counts not of whole nodes of 8 GPUs" in odd.err
    assert "planned as" not in ran([*words, "--gpus", "1..8"]).err
    (files / "pairs.csv").write_text("job,cluster\nb,7\n")
    assert ran([*words, "--gpus", "8,7", "--pairs", str(files / "pairs.csv")]).out.splitlines()[1:] == ["7,7"]


def test_a_name_in_the_place_of_job_is_noticed(files, ran):
    words = ["--gpus", "8", "--columns", "status"]
    (files / "named.csv").write_text("Name,effective_batch,lr\na,256,0.1\n")
    assert "carried along: Name (job?)" in ran(["fleet", str(files / "named.csv"), *words]).err
    (files / "both.csv").write_text("job,name,effective_batch,lr\na,x,256,0.1\n")
    assert "carried along: name\n" in ran(["fleet", str(files / "both.csv"), *words]).err


def test_jobs_and_clusters_in_the_wrong_order_are_told(files, ran):
    says = "nodes is missing: these are jobs: pass them first, then the clusters"
    assert says in ran(["fleet", str(files / "clusters.csv"), str(files / "jobs.csv")], 2).err
