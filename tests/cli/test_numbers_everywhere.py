"""A number is the same by --set, in a table and in JSON; all of them refuse a duplicate key."""

import io
import json
import sys
import types

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.files.limits import refuse_duplicate_keys
from isobatch.words import number_of

NUMBERS = [".1", "1.", "+0.1", "1e-3", "+64", "0064", "64.0", "1e3", "64", " 64", "-0.5", "64.5", "1e0"]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_a_number(text):
    assert number_of(text) == float(text)
    assert isinstance(number_of(text), int) == (float(text) == int(float(text)))


@pytest.mark.parametrize(
    "text", ["", "90ep", "1_0", "0x10", "nan", "inf", "1e", ".", "--1", "1,024", "٣", "1 2"]
)
def test_bad_numbers(text):
    assert number_of(text) is None


def test_whole_numbers_stay_exact():
    assert number_of("9007199254740993.0") == 2**53 + 1
    assert number_of("9" * 30) == int("9" * 30)


@pytest.mark.parametrize("batch", ["64.0", "+64", "0064", "6.4e1", "64."])
@pytest.mark.parametrize("lr", [".1", "+0.1", "1e-1", "0.10"])
def test_the_command_line_takes_what_a_table_takes(ran, batch, lr):
    words = ["plan", "--set", f"effective_batch={batch}", "--set", f"lr={lr}", "--gpus", "8", "--json"]
    plan = json.loads(ran(words).out)
    assert (plan["effective_batch"], plan["lr"]) == (64, 0.1)
    table = ib.plan_fleet({"effective_batch": np.array([batch]), "lr": np.array([lr])}, [8])
    assert (table["effective_batch"][0], table["lr"][0]) == (64, 0.1)


def test_a_part_of_a_sample_is_refused(capsys):
    assert main(["plan", "--set", "effective_batch=64.5", "--set", "lr=.1", "--gpus", "8"]) == 2
    assert "effective_batch must be a whole number" in capsys.readouterr().err


DOUBLED = [
    ('{"job": "a", "effective_batch": 256, "lr": 0.1, "lr": 0.2}', "lr"),
    ('{"job": "a", "effective_batch" : 256, "lr": 0.1, "l\\u0072": 0.2}', "lr"),
    ('{"job": "a", "effective_batch": 256, "lr": NaN, "lr": 0.1}', "lr"),
    ('{"job": "a:b", "effective_batch": 256, "lr": 0.1, "note": {"x": 1, "x": 2}}', "x"),
]


@pytest.mark.parametrize(("line", "name"), DOUBLED)
def test_a_key_twice_in_json_lines_is_refused_with_its_row(tmp_path, line, name):
    pytest.importorskip("pyarrow")
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text('{"job": "ok", "effective_batch": 256, "lr": 0.1, "note": null}\n' + line + "\n")
    with pytest.raises(ib.InputError, match=rf"jobs\.jsonl, row 2: '{name}' is listed twice"):
        ib.plan_fleet(jobs, [8])


@pytest.mark.parametrize(
    "line",
    [
        '{"a": "x:y", "b": {"c": 1}}',
        '{"a": [{"c": 1}, {"c": 2}]}',
        '{"a": "\\"b\\": 1"}',
        "{}",
        '{"a": 1e5, "b": ":"}',
    ],
)
def test_colons_elsewhere_are_no_second_key(line):
    import msgspec

    refuse_duplicate_keys(line.encode(), msgspec.json.decode(line))


@pytest.mark.parametrize("deep", [100, 990, 100_000])
def test_a_request_however_deep_is_answered(ran, monkeypatch, deep):
    line = '{"gpus": 8, "recipe": ' + '{"a": ' * deep + "1" + "}" * (deep + 1)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(line.encode())))
    assert "a fault of isobatch" not in ran(["plan", "-"], 2).out


def test_a_key_twice_in_a_request_is_refused(ran, monkeypatch):
    requests = [
        '{"id": 1, "gpus": 8, "recipe": {"effective_batch": 256, "lr": 0.1}}',
        '{"id": 2, "gpus": 8, "gpus": 16, "recipe": {"effective_batch": 256, "lr": 0.1}}',
        '{"id": 3, "gpus": 8, "recipe": {"effective_batch": 256, "lr": 0.1, "lr": 0.2}}',
    ]
    stream = io.BytesIO("\n".join(requests).encode())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=stream))
    first, *rest = map(json.loads, ran(["plan", "-"], 2).out.splitlines())
    assert first["status"] == "ok"
    assert [item["error"] for item in rest] == ["'gpus' is listed twice", "'lr' is listed twice"]


@pytest.mark.parametrize(
    "cells", [[64, "64 "], [64, "sixty"], [64, None, "64"], [64.0, 64, "64"], [True, 64]]
)
def test_a_column_of_mixed_kinds_is_judged_row_by_row(cells):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    lrs = [0.1] * len(cells)
    frame = pandas.DataFrame({"effective_batch": pandas.Series(cells, dtype=object), "lr": lrs})
    arrays = {"effective_batch": np.array(cells, dtype=object), "lr": np.array(lrs)}
    result, expected = ib.plan_fleet(frame, [8]), ib.plan_fleet(arrays, [8])
    assert result["status"].to_pylist() == expected["status"].tolist()


def test_a_column_with_lists_among_texts_is_named():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"effective_batch": [64, 64], "lr": [0.1, 0.1], "note": ["a", [1]]})
    with pytest.raises(ib.InputError, match="note"):
        ib.plan_fleet(frame, [8])
