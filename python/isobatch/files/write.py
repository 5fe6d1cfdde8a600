"""Tables, written whole or not at all, on disk or in a store known to pyarrow.

Formats: CSV, Parquet, JSON lines, and TSV without quotes for the simplest programs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType

from isobatch.errors import InputError, unwritable
from isobatch.files.find import location, unknown_format
from isobatch.files.whole import unfinished
from isobatch.words import shown

Write = Callable[["pa.Table"], None]


@contextmanager
def table_writer(output: str, metadata: dict[str, str], *, escape_formulas: bool = False) -> Iterator[Write]:
    """Gives a function to append tables of one schema to a file; it appears whole as the block ends.

    Args:
        output: a path or URL; its suffix says the format.
        metadata: for Parquet, stored beside the table.
        escape_formulas: in CSV and TSV, put `'` in front of texts with a meaning for spreadsheets.
    """
    fs, path = location(output)
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in WRITERS:
        raise unknown_format(path, WRITERS)
    folder = str(PurePosixPath(path).parent)
    if fs.get_file_info(folder).type != FileType.Directory:
        raise InputError("there is no such folder", file=folder)
    options = {"escape_formulas": True} if escape_formulas and suffix in (".csv", ".tsv") else {}
    try:
        with unfinished(fs, path) as partial, WRITERS[suffix](fs, partial, metadata, **options) as write:
            yield write
    except (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise unwritable(error, output) from None


@contextmanager
def parquet_writer(
    fs: FileSystem,
    path: str,
    metadata: dict[str, str],
    footer: Callable[[], dict[bytes, bytes]] | None = None,
) -> Iterator[Write]:
    """Appends tables to a Parquet file, a row group each.

    The metadata join the schema's; `footer` gives the file's own at the end.
    """
    import pyarrow.parquet as pq

    with ExitStack() as files:
        writer: Any = None

        def write(table: pa.Table) -> None:
            nonlocal writer
            if writer is None:
                sink = files.enter_context(fs.open_output_stream(path))
                writer = pq.ParquetWriter(
                    sink,
                    table.schema.with_metadata({**(table.schema.metadata or {}), **metadata}),
                    compression="zstd",
                    # A flipped bit in a plan is found when it is read.
                    write_page_checksum=True,
                    use_dictionary=_repeating(table),
                )
                files.enter_context(writer)
            writer.write_table(table.cast(writer.schema))

        yield write
        if footer is not None and writer is not None:
            writer.add_key_value_metadata(footer())


_SAMPLE_ROWS = 1 << 12


def _repeating(table: pa.Table) -> list[str] | bool:
    """Returns the columns worth a dictionary, by their paths in Parquet, from a sample of the rows.

    With many different values a dictionary costs more than it saves; a small table has one for each column.
    """
    import numpy as np
    import pyarrow.compute as pc

    if table.num_rows < 8 * _SAMPLE_ROWS:
        return True
    sample = table.take(pa.array(np.linspace(0, table.num_rows - 1, _SAMPLE_ROWS).astype(np.int64)))
    names = []
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        kind = column.type
        if pa.types.is_list(kind):
            names.append(f"{name}.list.element")
        elif not (pa.types.is_primitive(kind) or pa.types.is_string(kind)) or (
            8 * pc.count_distinct(column).as_py() <= _SAMPLE_ROWS - column.null_count
        ):
            names.append(name)
    return names


_BLOCK_LINES = 1 << 13


class JsonLines:
    """Appends tables as one JSON object a line."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink

    def __call__(self, table: pa.Table) -> None:
        import msgspec

        encoder = msgspec.json.Encoder()
        # A row is a kilobyte of Python's objects.
        for start in range(0, table.num_rows, _BLOCK_LINES):
            self.sink.write(encoder.encode_lines(table.slice(start, _BLOCK_LINES).to_pylist()))


class CsvLines:
    """Appends tables as CSV, the header once, lists as texts joined by `;`."""

    def __init__(self, sink: Any, *, escape_formulas: bool = False) -> None:
        self.sink, self.escape_formulas = sink, escape_formulas
        self.has_header, self.rows = False, 0

    def __call__(self, table: pa.Table) -> None:
        self._write(_as_text(table, escape_formulas=self.escape_formulas))
        self.has_header = True
        self.rows += table.num_rows

    def _write(self, table: pa.Table) -> None:
        import pyarrow.csv

        options = pyarrow.csv.WriteOptions(include_header=not self.has_header)
        pyarrow.csv.write_csv(table, self.sink, options)


class _TsvLines(CsvLines):
    """Appends tables as cells between tabs, without quotes; a text in need of them is an error."""

    def _write(self, table: pa.Table) -> None:
        import pyarrow.csv

        if not self.has_header:
            if any(set(name) & set('\t\r\n"') for name in table.column_names):
                raise pa.ArrowInvalid("a column's name would need quotes")
            self.sink.write("\t".join(table.column_names).encode() + b"\n")
        options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        try:
            pyarrow.csv.write_csv(table, self.sink, options)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(_unquoted(table, self.rows) or str(error)) from None


def _unquoted(table: pa.Table, before: int) -> str | None:
    """Names the first text in need of quotes, and its place; None where there is none."""
    import pyarrow.compute as pc

    problems = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            continue
        row = pc.index(pc.match_substring_regex(column, '[\t\r\n"]'), True).as_py()
        if row >= 0:
            problems.append((row, name, column[row].as_py()))
    if not problems:
        return None
    row, name, text = min(problems)
    has = f"row {before + row + 1:,}, column {name}: {shown(text)} has a tab, a line end or a quote in it"
    return f"{has}, which .tsv cannot hold; rename it, or write .csv, .parquet or .jsonl"


def _as_text(table: pa.Table, *, escape_formulas: bool) -> pa.Table:
    """Returns the table as cells of text: lists joined, formulas of spreadsheets escaped on request."""
    table = _joined(table)
    if not escape_formulas:
        return table
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        column = table[index]
        if pa.types.is_dictionary(field.type):
            column = column.cast(field.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            escaped = pc.replace_substring_regex(column, r"\A([=+\-@\t\r])", r"'\1")
            table = table.set_column(index, field.name, escaped)
    names = [f"'{name}" if name[:1] in tuple("=+-@\t\r") else name for name in table.column_names]
    return table.rename_columns(names)


def _joined(table: pa.Table) -> pa.Table:
    """Joins lists to texts; other nested values are an error."""
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        if not pa.types.is_nested(field.type):
            continue
        try:
            texts = table[index].cast(pa.list_(pa.string()))
            if pc.list_flatten(texts).null_count:
                raise pa.ArrowInvalid("a value in a list is missing")
        except pa.ArrowException as error:
            why = f"column {field.name!r} is no text, but Parquet and JSON lines can hold it: {error}"
            raise pa.ArrowInvalid(why) from None
        table = table.set_column(index, field.name, pc.binary_join(texts, ";"))
    return table


def _lines(kind: Callable[..., Write]) -> Callable[..., AbstractContextManager[Write]]:
    """A writer of one kind of text; it has no place for metadata."""

    @contextmanager
    def writer(fs: FileSystem, path: str, _: dict[str, str], **options: bool) -> Iterator[Write]:
        with fs.open_output_stream(path) as sink:
            yield kind(sink, **options)

    return writer


WRITERS = {
    ".csv": _lines(CsvLines),
    ".tsv": _lines(_TsvLines),
    ".parquet": parquet_writer,
    ".pq": parquet_writer,
    ".jsonl": _lines(JsonLines),
    ".ndjson": _lines(JsonLines),
}
