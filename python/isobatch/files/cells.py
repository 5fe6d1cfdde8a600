"""CSV: cells of text, separated by commas; by tabs, semicolons or bars where the header has no comma."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError
from isobatch.words import counted, printable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_BYTES = 1 << 23
"""Of a file that are parsed at a time."""
_SIGNS = ",\t;|"
"""What may separate cells: the first of these that the header has."""


@dataclass(frozen=True)
class _Header:
    names: list[str]
    sign: str
    is_all: bool
    """No row follows."""


def csv_batches(fs: FileSystem, path: str) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """The rows of a CSV file, some MiB at a time, and their schema: every column as text, which the core reads exactly. A type guessed
    from the first rows would fail in later ones, and what is carried along stays as it is ("007" stays "007").

    Raises:
        InputError: the file is empty, or a row has more or fewer cells than the header; the message names the row.
    """
    import pyarrow as pa

    header = _header(fs, path)
    schema = pa.schema([(name, pa.string()) for name in header.names])
    return (iter(()) if header.is_all else _batches(fs, path, header)), schema


def _header(fs: FileSystem, path: str) -> _Header:
    """Spreadsheets write semicolons where the comma is the decimal sign. A cell such as 0,1 then stays the text that it is, and is
    refused where a number is read: 1.281 may be meant as either."""
    with (
        fs.open_input_stream(path) as stream,
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text,
    ):
        first = list(itertools.islice(text, 1))
        sign = next((sign for sign in _SIGNS if sign in "".join(first)), ",")
        names = next(csv.reader(itertools.chain(first, text), delimiter=sign), [])
        if not names:
            raise InputError("the file is empty", file=path)
        return _Header(names, sign, is_all=next(text, None) is None)


def _batches(fs: FileSystem, path: str, header: _Header) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        with fs.open_input_stream(path) as stream:
            yield from _reader(stream, header)
    except pa.ArrowInvalid as error:
        # pyarrow knows the row's number only where it reads with one thread.
        raise _misfit(fs, path, header) or error from None


def _misfit(fs: FileSystem, path: str, header: _Header) -> InputError | None:
    """The first row that has another number of cells than the header; None where there is none."""
    import pyarrow as pa

    found: list[Any] = []

    def keep(row: Any) -> str:
        found.append(row)
        return "error"

    try:
        with fs.open_input_stream(path) as stream:
            for _ in _reader(stream, header, use_threads=False, invalid_row_handler=keep):
                pass
    except pa.ArrowInvalid:
        pass
    if not found:
        return None
    row = found[0]
    columns = counted(row.expected_columns, "column")
    if '"' in row.text and "\n" in row.text:
        what = f"a quote that is opened here is not closed where the row ends: {columns} were expected"
    elif row.actual_columns < row.expected_columns:
        what = f"has {counted(row.actual_columns, 'cell')} for {columns}: an unknown cell is empty, and keeps its {header.sign!r}"
    else:
        what = f"has {counted(row.actual_columns, 'cell')} for {columns}: put a cell that has {header.sign!r} in it between quotes"
    # The header is its first row.
    return InputError(f"{what}. The row: {printable(row.text, 80)}", file=path, row=row.number - 1)


def _reader(
    stream: Any, header: _Header, *, use_threads: bool = True, invalid_row_handler: Any = None
) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    return pyarrow.csv.open_csv(
        stream,
        read_options=pyarrow.csv.ReadOptions(block_size=_BYTES, use_threads=use_threads),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=header.sign, invalid_row_handler=invalid_row_handler
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(header.names, pa.string()),
            strings_can_be_null=True,
            # A job may be called null; what "null" is in a field is decided where fields are read.
            null_values=[""],
        ),
    )
