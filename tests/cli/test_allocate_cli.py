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
    assert "1 job waits: effective_batch, gpus, micro_batch" in noted


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
