"""JSON lines block by block.

The table that all lines at once would be, in memory that does not grow with them.
"""

import io
import random
import sys
import tracemalloc

import msgspec
import pyarrow as pa
import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.files import json_lines as lines
from isobatch.files import write

POOLS = [
    [None],
    [1, -5, 2**53, 2**53 + 1, -(2**53) - 1],
    [2**63, 2**64 - 1],
    [-(2**63), -1],
    [2**64, 2**70],
    [True, False],
    [0.5, 1e300],
    ["a", ""],
    [[1], [0.5], [], [None]],
    [{"x": 1}, {"y": 2}, {"x": "s"}],
    [[[1]], ["a"]],
    [{"x": [1]}, {"x": None}],
]
"""Cells of kinds that meet in a column."""


def at_once(cells):
    """Returns Arrow's own reading of a whole column; texts if it has no type."""
    kinds = set(map(type, cells))
    try:
        if {bool, float} <= kinds:
            raise TypeError
        return pa.array(cells)
    except (pa.ArrowException, OverflowError, TypeError):
        texts = (c if c is None or isinstance(c, str) else msgspec.json.encode(c).decode() for c in cells)
        return pa.array(list(texts), pa.string())


def streamed(data):
    schema = lines.lines_schema(io.BytesIO(data), "jobs.jsonl")
    return pa.Table.from_batches(lines.lines_batches(io.BytesIO(data), "jobs.jsonl", schema), schema)


def test_blocks_make_the_table_that_all_lines_make(monkeypatch):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 40)
    rng = random.Random(0)
    for _ in range(500):
        pools = rng.sample(POOLS, rng.choice([1, 1, 2, 2, 3]))
        cells = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 12))]
        # A cell that is not known may be null or missing.
        records = [
            {"n": n} if cell is None and rng.random() < 0.5 else {"n": n, "c": cell}
            for n, cell in enumerate(cells)
        ]
        end = rng.choice([b"\n", b"\r\n", b"\n\n"])
        table = streamed(
            b"\xef\xbb\xbf" + end.join(map(msgspec.json.encode, records)) + rng.choice([b"", end])
        )
        assert table["n"].to_pylist() == list(range(len(cells)))
        if any("c" in record for record in records):
            reference = at_once(cells)
            assert table["c"].type == reference.type, cells
            assert table["c"].combine_chunks().equals(reference), cells


def test_a_column_that_comes_late_is_there_from_the_first_row(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 100)
    rows = [{"job": n, "effective_batch": 256, "lr": 1} for n in range(50)]
    rows[-1] |= {"lr": 0.1, "team": "a", "max_micro_batch": 4}
    (tmp_path / "jobs.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    plans = ib.plan_fleet(
        tmp_path / "jobs.jsonl", [8], columns=["job", "team", "lr", "micro_batch"]
    ).to_pylist()
    assert [plan["job"] for plan in plans] == list(range(50))
    assert [plan["lr"] for plan in plans] == [1.0] * 49 + [0.1]
    assert [plan["team"] for plan in plans] == [None] * 49 + ["a"]
    assert [plan["micro_batch"] for plan in plans] == [32] * 49 + [4]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch, end):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 500)
    data = b'{"job": 1}\n{"job": "' + b"x" * 3000 + b'"}' + end
    with pytest.raises(ib.InputError, match="row 2: is no JSON object: the line has more than 1,000 bytes"):
        streamed(data)


def peak(call):
    """Bytes of Python's and Arrow's memory at the most, above those before."""
    before, pool = pa.total_allocated_bytes(), pa.default_memory_pool()
    arrow = 0
    tracemalloc.start()
    try:
        for _ in call():
            arrow = max(arrow, pool.bytes_allocated() - before)
        return tracemalloc.get_traced_memory()[1] + arrow
    finally:
        tracemalloc.stop()


def test_reading_takes_no_more_memory_for_more_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 1 << 14)
    line = b'{"job": "a name of some length", "effective_batch": 256, "lr": 0.1, "team": "blue"}\n'

    for rows in (2_000, 16_000):
        (tmp_path / f"{rows}.jsonl").write_bytes(line * rows)

    def read(rows):
        path = tmp_path / f"{rows}.jsonl"
        with path.open("rb") as first, path.open("rb") as two:
            count = 0
            for batch in lines.lines_batches(two, "", lines.lines_schema(first, "")):
                count += batch.num_rows
                yield
        assert count == rows

    more = len(line) * 14_000
    assert (
        peak(lambda: read(16_000)) < peak(lambda: read(2_000)) + more / 3
    )  # were they kept, all of it and more


def test_writing_takes_no_more_memory_for_more_rows(monkeypatch):
    monkeypatch.setattr(write, "_BLOCK_LINES", 500)

    class Sink:
        written = 0

        def write(self, data):
            self.written += data.count(b"\n")

    def written(rows):
        table, sink = pa.table({"job": range(rows), "status": ["infeasible"] * rows}), Sink()
        write.JsonLines(sink)(table)
        assert sink.written == rows
        yield

    few = peak(lambda: written(2_000))
    assert peak(lambda: written(16_000)) < 4 * few


def test_numbers_that_json_lacks_are_values_of_their_row(tmp_path, ran):
    """Python's json and pandas write them."""
    lines = [
        '{"job": "a", "effective_batch": 256, "lr": 0.1, "weight_decay": NaN, "note": NaN}',
        '{"job": "b", "effective_batch": 256, "lr": NaN, "weight_decay": 0.1, "note": "x"}',
        '{"job": "c", "effective_batch": 256, "lr": Infinity, "betas": [0.9, NaN]}',
        '{"job": "d", "effective_batch": 1e999, "lr": 0.1, "note": -Infinity}',
        '{"job": "e", "effective_batch": 256, "lr": 0.1}',
    ]
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("\n".join(lines))
    plans = ib.plan_fleet(jobs, [8])
    assert plans["reasons"].to_pylist() == [[], ["invalid_lr"], ["invalid_lr"], ["invalid_batch"], []]
    assert plans["note"].to_pylist() == [None, "x", None, "-inf", None]
    message = ran(["fleet", str(jobs), "--gpus", "8"]).err
    assert f"first in job b ({jobs}, row 2), cluster 8 (row 1): lr is missing" in message
    assert f"first in job d ({jobs}, row 4), cluster 8 (row 1): effective_batch must be" in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"job": "b", "lr": 0.1', "Input data was truncated. Each line is one whole object: {"),
        ('{"job": "b", "lr": NaN', "Each line is one whole object: {"),
        ('{"job": "\\ud800", "lr": NaN}', "Each line is one whole object: {"),
        ("NaN", "Each line is one whole object: NaN"),
        ("null", "Each line is one whole object: null"),
        ("3", "Each line is one whole object: 3"),
        ('{"job": "\udcff"}', "Each line is one whole object: {"),
        ('{"job": ' + "[" * 50_000 + "]" * 50_000 + "}", "nested too deep"),
        ('{"job": ' + "[" * 100 + "]" * 100 + "}", "nested too deep"),
        ('[{"job": "b"}, {"job": "c"}]', r"it is a list; give each job a line of its own, such as by jq"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path, line, message):
    jobs = tmp_path / "jobs.jsonl"
    text = '{"job": "a", "effective_batch": 256, "lr": 0.1}\n' + line + "\n"
    jobs.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ib.InputError, match=rf"jobs.jsonl, row 2: is no JSON object: .*{message}"):
        ib.plan_fleet(jobs, [8])
    assert f"{jobs}, row 2: " in ib.plan_files(jobs, [8], tmp_path / "plans").failed[str(jobs)]
    jobs.write_text("\n\n")
    with pytest.raises(ib.InputError, match="jobs.jsonl: the file is empty"):
        ib.plan_fleet(jobs, [8])


def test_a_list_of_jobs_is_told_from_one_recipe(tmp_path, capsys, ran, monkeypatch):
    jobs = tmp_path / "jobs.json"
    jobs.write_text(
        '[{"job": "a", "effective_batch": 256, "lr": 0.1},\n {"job": "b", "effective_batch": 8, "lr": 1}]'
    )
    message = "this is a list of 2 values: give each job a line of its own, in a .jsonl file"
    assert f"jobs.json: {message}" in ran(["fleet", str(jobs), "--gpus", "8"], 2).err
    with jobs.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["fleet", "-", "--gpus", "8"]) == 2
    assert f"stdin: {message}" in capsys.readouterr().err
