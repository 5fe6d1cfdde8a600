"""The page of a pool's log: bands that follow the log, and lines that are none."""

import json
import re

import pytest

from allocation.pools import profile
from isobatch import InputError, allocate
from isobatch.report.allocation_page import allocation_page, log_in
from isobatch.report.pages import page_of_file
from isobatch.words import figure

for package in ("altair", "vl_convert", "jinja2", "pyarrow"):
    pytest.importorskip(package, reason="pages come with the extra 'report'")


def line(seconds, **holdings):
    return {"seconds": seconds, "jobs": [{"job": job, "nodes": nodes} for job, nodes in holdings.items()]}


LOG = [
    line(0, a={"n1": 4}, b={}),
    line(3600, a={"n1": 2}, b={"n1": 2, "n10": 1}),
    line(7200, a={"n1": 2}, b={"n2": 4}),
    line(9000, b={"n2": 4}),
]


def test_each_band_is_what_the_log_says(tmp_path):
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in LOG))
    page = allocation_page(log_in(str(path)))
    bands = page.drawings[0].chart.to_dict()["data"]["values"]
    # n1 has the rows 0 to 3, n2 those from 4 to 7, and n10 the last one.
    drawn = [tuple(band[name] for name in ("job", "start", "end", "low", "high")) for band in bands]
    assert drawn[:2] == [("a", 0, 1, 2, 4), ("a", 0, 2.5, 0, 2)]
    assert drawn[2:] == [("b", 1, 2, 2, 4), ("b", 1, 2, 8, 9), ("b", 2, 2.5, 4, 8)]
    assert page.title == "The pool over 2.5 hours: 2 jobs used 4.8 GPUs on average"
    assert page.drawings[0].described == "Each band is a job's GPUs on a node; idle GPUs have no band."
    assert page.sections[0].tables[0].rows == [("a", "7", "0", "1"), ("b", "5", "1", "2")]


@pytest.mark.parametrize("bad", [line(-1), {"seconds": 1}, line(1, a={"n": 0}), line(1, a=[]), [], "x"])
def test_a_line_that_is_no_answer_is_named(tmp_path, bad):
    path = tmp_path / "pool.jsonl"
    path.write_text(f"{json.dumps(LOG[0])}\n{json.dumps(bad)}\n")
    with pytest.raises(InputError, match=re.escape("seconds, which do not fall")) as refused:
        log_in(str(path))
    assert refused.value.row == 2


def test_another_file_is_none(tmp_path):
    path = tmp_path / "plans.jsonl"
    path.write_text('{"job": "a"}\n')
    assert log_in(str(path)) is None
    assert log_in(str(tmp_path / "missing.jsonl")) is None


@pytest.mark.parametrize("indent", [None, 2])
def test_a_single_division_says_who_has_what(tmp_path, indent):
    jobs = [
        {"job": "a", "nodes": {"n1": 4, "n2": 1}, "why": ""},
        {"job": "b", "nodes": {}, "why": "no profile"},
    ]
    path = tmp_path / "division.json"
    path.write_text(json.dumps({"objective": "fair", "idle": 3, "jobs": jobs}, indent=indent))
    page = page_of_file(str(path))
    assert page.title == "1 job has 5 GPUs, 1 waits"
    assert page.sections[0].tables[0].rows == [("a", "5", "n1: 4, n2: 1", ""), ("b", "0", "", "no profile")]
    if indent is None:
        (tmp_path / "log.jsonl").write_text(path.read_text())
        assert page_of_file(str(tmp_path / "log.jsonl")) == page


def test_a_division_has_hours_cost_and_deadlines(tmp_path):
    job = {"effective_batch": [840], "lr": [0.1], "duration": ["100st"], "deadline_hours": [48.0]}
    nodes = {"gpus": [2], "price_per_gpu_hour": [2.0]}
    answer = allocate({"job": ["a"], **job}, nodes, profile=profile())
    (row,) = answer.to_json()["jobs"]
    (tmp_path / "division.json").write_text(json.dumps(answer.to_json()))
    table = page_of_file(str(tmp_path / "division.json"), currency="€").sections[0].tables[0]
    assert [*table.columns] == ["job", "GPUs", "hours left", "deadline, hours", "cost, €", "nodes"]
    assert table.rows == [("a", "2", figure(row["hours_left"]), "48", figure(row["cost"]), "0: 2")]
    assert row["cost"] == pytest.approx(4 * row["hours_left"])


def test_the_rows_of_a_division_are_no_fleet(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("job,status,gpus,nodes,why,goodput,speedup\na,runs,8,n1:8,,,1\n")
    with pytest.raises(
        InputError, match="rows of isobatch allocate, not a fleet's plans: isobatch allocate --json"
    ):
        page_of_file(str(path))
