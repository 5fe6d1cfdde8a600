"""Tables in files, block by block: CSV, Parquet, JSON lines.

CSV is cells of text between commas; between tabs, semicolons or bars where the header has no comma.
"""

import csv
import io
import itertools
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileSystem

from isobatch.errors import InputError, not_utf8
from isobatch.files.find import find, format_of, naming_file
from isobatch.files.limits import refuse_columns
from isobatch.words import counted, printable


def read_table(path: str | os.PathLike[str]) -> pa.Table:
    """Reads a file, a folder or a glob of files as one table, rows in the order of the files' names."""
    files = find(path)
    tables = [pa.concat_tables(blocks(files.fs, info.path, 1 << 20)) for info in files.infos]
    if any(table.column_names != tables[0].column_names for table in tables):
        raise InputError("its files have different columns", file=os.fspath(path))
    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]


def blocks(fs: FileSystem, path: str, rows: int, encoded: Collection[str] = ()) -> Iterator[pa.Table]:
    """Reads the table in a file, in at least one block of at most `rows` rows.

    JSON lines are read twice, since their last line may have a new column. A Parquet file's texts in
    `encoded` columns come as dictionaries if the file has few values.
    """
    how = format_of(path)
    with naming_file(path):
        if how == "parquet":
            yield from _parquet_blocks(fs, path, rows, encoded)
            return
        if how == "csv":
            header = _csv_header(fs, path)
            yield from _cut(_csv_batches(fs, path, header), header.schema, rows)
            return
        from isobatch.files.json_lines import lines_batches, lines_schema

        with fs.open_input_stream(path) as stream:
            schema = lines_schema(stream, path)
        with fs.open_input_stream(path) as stream:
            yield from _cut(lines_batches(stream, path, schema), schema, rows)


def _cut(batches: Any, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    empty = True
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for start in range(0, table.num_rows, rows):
            empty = False
            yield table.slice(start, rows)
    if empty:
        yield schema.empty_table()


_SMALL_DICTIONARY = 1 << 14
"""Bytes in a file; the texts of a larger one are as well numbered anew."""


def _parquet_blocks(fs: FileSystem, path: str, rows: int, encoded: Collection[str]) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    with fs.open_input_file(path) as source:
        footer = pq.read_metadata(source)
        # Without read-ahead: a row group may be larger than memory.
        file = pq.ParquetFile(
            source,
            metadata=footer,
            read_dictionary=_few_texts(footer, encoded),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )
        refuse_columns(file.schema_arrow.names, path)
        batches = file.iter_batches(rows)
        yield from _cut(_joined(batches, rows), file.schema_arrow, rows)


def _few_texts(footer: Any, names: Collection[str]) -> list[str]:
    """Returns the columns of texts with small dictionaries in every row group."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [(footer.schema.column(n).path, n) for n in range(footer.num_columns)]
    named = [(name, n) for name, n in columns if name in names]
    return [name for name, n in named if all(_has_small_dictionary(group.column(n)) for group in groups)]


def _has_small_dictionary(chunk: Any) -> bool:
    if chunk.physical_type != "BYTE_ARRAY" or not chunk.has_dictionary_page:
        return False
    size: int = chunk.data_page_offset - chunk.dictionary_page_offset
    return size < _SMALL_DICTIONARY


def _joined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Joins batches, ending where their dictionaries do, to batches of at least this many rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(batch.num_rows for batch in waiting) >= rows:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


# CSV

_CSV_BYTES = 1 << 23
"""Of a file that are parsed at a time."""
_MAX_HEADER_CHARACTERS = 1 << 20
_SEPARATORS = ",\t;|"
"""Separators of cells: the first of these that the header has."""


class _CsvHeader(NamedTuple):
    schema: pa.Schema
    """Every column is text, and the core reads it exactly.

    A type guessed from the first rows would fail in later ones, and a user's own "007" stays "007".
    """
    separator: str
    has_rows: bool


def _csv_header(fs: FileSystem, path: str) -> _CsvHeader:
    """Reads the header; spreadsheets write semicolons where the comma is the decimal sign."""
    with (
        fs.open_input_stream(path) as stream,
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text,
    ):
        lines = _first_lines(text, path)
        first = list(itertools.islice(lines, 1))
        separator = next((separator for separator in _SEPARATORS if separator in "".join(first)), ",")
        names = next(csv.reader(itertools.chain(first, lines), delimiter=separator), [])
        if not names:
            raise InputError("the file is empty", file=path)
        refuse_columns(names, path)
        schema = pa.schema([(name, pa.string()) for name in names])
        return _CsvHeader(schema, separator, has_rows=text.readline(1) != "")


def _first_lines(text: io.TextIOWrapper, path: str) -> Iterator[str]:
    """Yields lines, as long as they may be a header."""
    room = _MAX_HEADER_CHARACTERS
    while line := text.readline(room + 1):
        room -= len(line)
        if room < 0:
            raise InputError(f"has a header of more than {_MAX_HEADER_CHARACTERS:,} characters", file=path)
        yield line


def _csv_batches(fs: FileSystem, path: str, header: _CsvHeader) -> Iterator[pa.RecordBatch]:
    """Reads the rows of a CSV file, some MiB at a time."""
    if not header.has_rows:
        return
    try:
        with fs.open_input_stream(path) as stream:
            yield from _csv_reader(stream, header)
    except pa.ArrowInvalid as error:
        # pyarrow knows the row's number only where it reads with one thread.
        raise _misfit(fs, path, header) or error from None


def _misfit(fs: FileSystem, path: str, header: _CsvHeader) -> InputError | None:
    """Finds the first row with more or fewer cells than the header; None where there is none."""
    rows: list[Any] = []

    def keep(row: Any) -> str:
        rows.append(row)
        return "error"

    undecodable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, undecodable.append  # pyarrow prints what it cannot decode
    try:
        with suppress(pa.ArrowInvalid), fs.open_input_stream(path) as stream:
            for _ in _csv_reader(stream, header, use_threads=False, invalid_row_handler=keep):
                pass
    finally:
        sys.unraisablehook = hook
    if undecodable:
        return not_utf8(path)
    if not rows:
        return None
    row = rows[0]
    columns = counted(row.expected_columns, "column")
    if '"' in row.text and "\n" in row.text:
        problem = f"a quote that is opened here is not closed where the row ends: {columns} were expected"
    else:
        todo = f"put a cell that has {header.separator!r} in it between quotes"
        if row.actual_columns < row.expected_columns:
            todo = f"an unknown cell is empty, and keeps its {header.separator!r}"
        problem = f"has {counted(row.actual_columns, 'cell')} for {columns}: {todo}"
    # The header is its first row.
    return InputError(f"{problem}. The row: {printable(row.text, 80)}", file=path, row=row.number - 1)


def _csv_reader(
    stream: Any, header: _CsvHeader, *, use_threads: bool = True, invalid_row_handler: Any = None
) -> Any:
    import pyarrow.csv

    return pyarrow.csv.open_csv(
        stream,
        read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BYTES, use_threads=use_threads),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=header.separator, invalid_row_handler=invalid_row_handler
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=header.schema,
            strings_can_be_null=True,
            # A job may be called null; what "null" is in a field is decided where fields are read.
            null_values=[""],
        ),
    )
