"""Tables in files, block by block: CSV, Parquet, JSON lines."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError
from isobatch.files.cells import csv_batches
from isobatch.files.find import find, format_of, named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem


def read_table(path: str | os.PathLike[str]) -> pa.Table:
    """A file, a folder or a glob of files as one table, rows in the order of the files' names.

    Raises:
        InputError: there is no such file, or it cannot be read; the message names it.
    """
    files = find(path)
    import pyarrow as pa

    tables = [pa.concat_tables(blocks(files.fs, info.path, 1 << 20)) for info in files.infos]
    if any(table.column_names != tables[0].column_names for table in tables):
        raise InputError("its files have different columns", file=os.fspath(path))
    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]


def blocks(
    fs: FileSystem,
    path: str,
    rows: int,
    row_groups: Sequence[int] | None = None,
    encoded: Collection[str] = (),
) -> Iterator[pa.Table]:
    """The table in a file, in blocks of at most this many rows, at least one block; of a Parquet file these row groups.
    JSON lines are read twice: what their columns are is known at their end. Texts in `encoded` columns may come as dictionaries, where a Parquet file holds few.

    Raises:
        InputError: it cannot be read; the message names it.
    """
    how = format_of(path)
    with named(path):
        if how == "parquet":
            yield from _parquet_blocks(fs, path, rows, row_groups, encoded)
            return
        if how == "csv":
            batches, schema = csv_batches(fs, path)
            yield from _cut(batches, schema, rows)
            return
        from isobatch.files.lines import lines_batches, lines_schema

        with fs.open_input_stream(path) as stream:
            schema = lines_schema(stream, path)
        with fs.open_input_stream(path) as stream:
            yield from _cut(lines_batches(stream, path, schema), schema, rows)


def _cut(batches: Any, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    import pyarrow as pa

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


def _parquet_blocks(
    fs: FileSystem, path: str, rows: int, row_groups: Sequence[int] | None, encoded: Collection[str]
) -> Iterator[pa.Table]:
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
        batches = file.iter_batches(rows, row_groups=row_groups)
        yield from _cut(_joined(batches, rows), file.schema_arrow, rows)


def _few_texts(footer: Any, names: Collection[str]) -> list[str]:
    """Those of the columns that are texts with small dictionaries in every row group."""
    few = [n for n in range(footer.num_columns) if footer.schema.column(n).path in names]
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        few = [n for n in few if _has_small_dictionary(group.column(n))]
    return [footer.schema.column(n).path for n in few]


def _has_small_dictionary(chunk: Any) -> bool:
    if chunk.physical_type != "BYTE_ARRAY" or not chunk.has_dictionary_page:
        return False
    size: int = chunk.data_page_offset - chunk.dictionary_page_offset
    return size < _SMALL_DICTIONARY


def _joined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of at least this many rows, made of batches that end where a dictionary does."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(batch.num_rows for batch in waiting) >= rows:
            yield from _one(waiting)
            waiting = []
    if waiting:
        yield from _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
