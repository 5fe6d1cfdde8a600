"""`isobatch allocate`, and its request of `isobatch plan -`."""

import csv
import io
import json
import sys
from types import SimpleNamespace

import pytest

from allocation.pools import profile
from isobatch.cli import main


@pytest.fixture
def files(tmp_path):
    profile().save(tmp_path / "profile.json")
    speed = tmp_path / "profile.json"
    (tmp_path / "jobs.csv").write_text(
        f"job,effective_batch,lr,duration,max_gpus,profile\na,840,0.1,100st,2,{speed}\n"
        f"b,840,0.1,100st,,{speed}\nc,0,0.1,100st,,\n"
    )
    (tmp_path / "nodes.csv").write_text("node,gpus,gpu\nn1,4,H100\nn2,4,H100\n")
    (tmp_path / "held.csv").write_text("job,node,gpus\na,n1,4\n")
    return tmp_path


def test_a_pool_from_files(files, ran):
    names = [str(files / name) for name in ("jobs.csv", "nodes.csv")]
    output, noted = ran(["allocate", *names, "--held", str(files / "held.csv"), "--json"])
    answer = json.loads(output)
    rows = [(row["job"], row["status"], row["nodes"]) for row in answer["jobs"]]
    assert rows == [("a", "moves", {"n1": 2}), ("b", "runs", {"n2": 4}), ("c", "waits", {})]
    assert [change["action"] for change in answer["changes"]] == ["shrink", "start"]
    assert "2 jobs on 6 GPUs, 2 idle (no job gains from them)" in noted
    assert "jobs.csv, row 3): effective_batch must be" in noted


@pytest.mark.parametrize(
    ("column", "value"), [("lr", "0,1"), ("weight", "2,5"), ("price_per_gpu_hour", "2,5")]
)
def test_a_decimal_comma_is_named_with_its_column_and_row_and_read(column, value, files, ran):
    job = {"job": "a", "effective_batch": "840", "lr": "0,1", "duration": "100st", "weight": "1"}
    job |= {"profile": str(files / "profile.json"), "deadline_hours": "1000"}
    node = {"node": "n1", "gpus": "4", "gpu": "H100", "price_per_gpu_hour": "2"}
    job, node = ({**each, **({column: value} if column in each else {})} for each in (job, node))
    plain = {**job, "lr": "0.1"} if column != "lr" else job
    tables = files / "comma-jobs.csv", files / "comma-nodes.csv"
    for path, row in zip(tables, (plain, node), strict=True):
        path.write_text("\n".join(";".join(cells) for cells in (row, row.values())))
    refused = ran(["allocate", *map(str, tables)], 2 if column in node else 0).err
    assert f"{column} must be" in refused and f"'{value}'" in refused and "--decimal ," in refused
    assert "row 1" in refused
    tables[0].write_text("\n".join(";".join(cells) for cells in (job, job.values())))
    output, noted = ran(["allocate", *map(str, tables), "--decimal", ",", "--json"])
    assert "1 job on 4 GPUs" in noted and json.loads(output)["jobs"][0]["lr"] == 0.1


def test_a_number_of_gpus_is_whole_nodes_as_in_isobatch_plan(files, ran, monkeypatch, capsys):
    run = {"job": "a", "effective_batch": 840, "lr": 0.1, "duration": "100st", "min_gpus": 24}
    jobs, speed = files / "jobs.jsonl", str(files / "profile.json")
    jobs.write_text(json.dumps(run))
    hardware = ["--profile", speed, "--price-per-gpu-hour", "2", "--inter-gb-s", "5"]
    fields = [f"--set={name}={value}" for name, value in [*run.items()][1:4]]
    planned = json.loads(ran(["plan", *fields, "--gpus", "24", *hardware, "--json"]).out)
    output = ran(["allocate", str(jobs), "24", *hardware, "-o", str(files / "rows.csv")])
    with (files / "rows.csv").open() as lines:
        (row,) = csv.DictReader(lines)
    assert row["nodes"] == "0:8;1:8;2:8" and "1 job on 24 GPUs" in output.err
    for name in ("hours", "cost"):
        assert float(row[name]) == pytest.approx(planned[name])
    for pool, key, text in ((24, "allocation", "'0': 8, '1': 8, '2': 8"), (12, "error", "nodes 12 fills no")):
        question = {"allocate": {"jobs": [run | {"profile": speed}], "nodes": pool}}
        _, answer = request(monkeypatch, capsys, json.dumps(question))
        assert text in str(answer[key])
    for words, why in (
        (["12", *hardware], "nodes 12 fills no whole nodes of 8 GPUs: use 8 or 16 GPUs, or another"),
        (["0", *hardware], "nodes must be at least 1, got 0"),
        ([str(files / "nodes.csv"), "--gpu", "H100"], "--gpu needs a number of GPUs in the place of nodes"),
    ):
        assert why in ran(["allocate", str(jobs), *words], 2).err
    assert "1 job on 24 GPUs" in ran(["allocate", str(jobs), "36", "--gpus-per-node", "12", *hardware]).err


def test_an_option_that_a_column_replaces_is_named(files, ran):
    pool = ["allocate", str(files / "jobs.csv"), "8", "--profile", str(files / "profile.json")]
    noted = ran([*pool, "--policy", "keep"]).err
    assert "--profile (profile=) is only used in rows whose own column profile is empty" in noted
    assert "--policy" not in noted and "is only used" not in ran([*pool[:3], "--policy", "keep"]).err
    late = (files / "jobs.csv").read_text().replace("max_gpus", "deadline_hours")
    (files / "jobs.csv").write_text(late)
    assert "--deadline-hours (deadline_hours=) is only" in ran([*pool[:3], "--deadline-hours", "9"]).err


@pytest.mark.parametrize("path", ["nothere.json", "nodes.csv", ".", "profile.json;nothere.json"])
def test_a_profile_that_cannot_be_read_is_an_error_with_its_row_and_column(path, files, ran, monkeypatch):
    """Its jobs would wait for ever, with exit code 0."""
    monkeypatch.chdir(files)
    (files / "jobs.csv").write_text(f"job,effective_batch,lr,profile\na,8,0.1,profile.json\nb,8,0.1,{path}\n")
    refused = ran(["allocate", "jobs.csv", "8"], 2).err
    assert (
        refused.startswith("isobatch allocate: jobs.csv, row 2: profile: ") and path.split(";")[-1] in refused
    )


@pytest.mark.parametrize("name", ["count", "gpu_count", "num_gpus", "gpuss"])
def test_the_column_that_is_to_be_renamed_is_no_other_field(name, files, ran):
    (files / "nodes.csv").write_text(f"node,{name},gpu\nn1,4,H100\n")
    refused = ran(["allocate", str(files / "jobs.csv"), str(files / "nodes.csv")], 2).err
    assert f"gpus is missing: rename '{name}'?" in refused


def test_rows_into_a_file(files, capsys):
    names = [str(files / name) for name in ("jobs.csv", "nodes.csv")]
    assert main(["allocate", *names, "-o", str(files / "rows.csv")]) == 0
    with (files / "rows.csv").open() as lines:
        rows = [*csv.DictReader(lines)]
    shown = [(row["job"], row["status"], row["gpus"], row["gpu"]) for row in rows[:2]]
    assert shown == [("a", "runs", "2", "H100"), ("b", "runs", "4", "H100")]
    assert rows[2]["status"] == "waits"
    assert "fair" in capsys.readouterr().err


def request(monkeypatch, capsys, text):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    code = main(["plan", "-"])
    return code, json.loads(capsys.readouterr().out)


def test_a_request(files, monkeypatch, capsys):
    jobs = [{"job": "a", "effective_batch": 840, "lr": 0.1, "profile": str(files / "profile.json")}]
    words = {"id": 7, "allocate": {"jobs": jobs, "nodes": [{"node": "x", "gpus": 4}]}, "max_micro_batch": 64}
    code, answer = request(monkeypatch, capsys, json.dumps(words))
    assert (code, answer["id"]) == (0, 7)
    assert answer["allocation"]["jobs"][0]["nodes"] == {"x": 4}


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({}, "jobs is missing"),
        ({"jobs": "a.csv", "nodes": 8}, "jobs must be a list of objects"),
        ({"jobs": [], "nodes": 8, "objektive": "fair"}, "did you mean 'objective'?"),
        ({"jobs": [{"job": "a", "effective_batch": 1, "lr": 1}], "nodes": 0}, "from 1 to 1,048,576"),
        ({"jobs": [{"job": "a", "effective_batch": 1, "lr": 1}], "nodes": 8, "objective": "best"},
            "objective"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_with_its_error(question, message, monkeypatch, capsys):
    code, answer = request(monkeypatch, capsys, json.dumps({"allocate": question}))
    assert code == 2
    assert message in answer["error"]
