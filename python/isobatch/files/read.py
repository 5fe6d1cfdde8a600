"""Reading tables from files: CSV, Parquet, JSON lines; from disk, or from a store that pyarrow knows (s3://, gs://, …)."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError, must_be, needs_extra, unreadable
from isobatch.words import few

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}

_CSV_BYTES = 1 << 23
"""Of a CSV file that are parsed at a time."""


@dataclass(frozen=True)
class Files:
    """The files of one table, in the order of their names, in the folder `base` or below it; `folder`: all of its files."""

    fs: FileSystem
    base: str
    infos: tuple[FileInfo, ...]
    folder: bool = False


def location(path: str | os.PathLike[str]) -> tuple[FileSystem, str]:
    """The filesystem of a path or URL, and the path in it.

    Raises:
        InputError: the kind of URL is not known, or pyarrow is not there.
    """
    text = os.fspath(path)
    try:
        import pyarrow as pa
        from pyarrow.fs import FileSystem, LocalFileSystem
    except ModuleNotFoundError:
        raise needs_extra("tables in files", "fleet", file=text) from None
    if "://" not in text:
        return LocalFileSystem(), text
    try:
        fs, inner = FileSystem.from_uri(text)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(error, text) from None
    return fs, inner


def find(path: str | os.PathLike[str]) -> Files:
    """The files that a path names: one, those of a folder and the folders in it, or those that a glob matches. Names that
    begin with `_` or `.` are not data.

    Raises:
        InputError: there is none.
    """
    from pyarrow.fs import FileSelector, FileType

    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise must_be("a path that can be written in UTF-8", os.fspath(path), field="path") from None
    fs, inner = location(path)
    with named(os.fspath(path)):
        info = fs.get_file_info(inner)
        if info.type == FileType.File:
            return Files(fs, str(PurePosixPath(inner).parent), (info,))
        if info.type == FileType.Directory:
            base, pattern = inner.rstrip("/"), None
        elif magic := re.search(r"[*?[]", inner):
            base = inner[: magic.start()].rpartition("/")[0]
            pattern = _plain(inner).split("/")
        else:
            raise InputError("there is no such file", file=inner)
        listed = fs.get_file_info(FileSelector(base or ".", recursive=True))
    found = []
    for info in sorted(listed, key=lambda info: info.path):
        name = PurePosixPath(info.path).relative_to(base)
        wanted = name.suffix in SUFFIXES and not any(part.startswith(("_", ".")) for part in name.parts)
        if info.type == FileType.File and wanted and (pattern is None or _is_match(info.path, pattern)):
            found.append(info)
    if not found:
        raise InputError(f"holds no {few(SUFFIXES)} file", file=os.fspath(path))
    return Files(fs, base, tuple(found), folder=pattern is None)


def refuse_output(files: Files, fs: FileSystem, output: str) -> None:
    """What is read must not be written over, and plans in a folder of jobs would be jobs to the next run.

    Raises:
        InputError: the output is one of the files, or lies in their folder.
    """
    if type(fs) is not type(files.fs):
        return
    path, base = Path(output).resolve(), Path(files.base).resolve()
    if path in {Path(info.path).resolve() for info in files.infos}:
        raise InputError("is read by this command: write the plans to another file", file=output)
    if path == base or (files.folder and path.is_relative_to(base)):
        raise InputError(
            f"is in the folder that is read, {files.base}: write the plans elsewhere", file=output
        )


def _plain(path: str) -> str:
    return path.removeprefix("./")


def _is_match(path: str, pattern: Sequence[str]) -> bool:
    """Whether a path matches a glob, folder by folder: `*` and `?` stay within one, `**` is any number of them. The time grows with
    the lengths, whatever the glob: it follows all places where the path could be at once."""
    places = _behind({0}, pattern)
    for name in _plain(path).split("/"):
        stay = {at for at in places if at < len(pattern) and pattern[at] == "**"}
        pass_ = {at + 1 for at in places if at < len(pattern) and fnmatchcase(name, pattern[at])}
        places = _behind(stay | pass_, pattern)
    return len(pattern) in places


def _behind(places: set[int], pattern: Sequence[str]) -> set[int]:
    """The places, and those behind a `**` that matches no folder."""
    found = set(places)
    for at in sorted(places):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            found.add(at)
    return found


def unknown_format(path: str, known: Iterable[str]) -> InputError:
    """A file whose suffix says no format that is known."""
    return InputError(f"cannot tell the format of {PurePosixPath(path).name!r}: use {few(known)}", file=path)


def format_of(path: str) -> str:
    """csv, parquet or jsonl, by the file's suffix.

    Raises:
        InputError: it is none of these.
    """
    suffix = PurePosixPath(path).suffix
    if suffix not in SUFFIXES:
        raise unknown_format(path, SUFFIXES)
    return SUFFIXES[suffix]


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
    JSON lines are read whole first. Texts in `encoded` columns may come as dictionaries, where a Parquet file holds few.

    Raises:
        InputError: it cannot be read; the message names it.
    """
    how = format_of(path)
    with named(path):
        if how == "parquet":
            yield from _parquet_blocks(fs, path, rows, row_groups, encoded)
            return
        with fs.open_input_stream(path) as stream:
            if how == "csv":
                batches: Any = _csv_reader(stream, _csv_header(fs, path))
                schema = batches.schema
            else:
                from isobatch.files.lines import read_lines

                table = read_lines(stream, path)
                batches, schema = table.to_batches(), table.schema
            yield from _cut(batches, schema, rows)


@contextmanager
def named(path: str) -> Iterator[None]:
    """Errors of reading name the file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise InputError("there is no such file", file=path) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(error, path) from None


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


def _csv_header(fs: FileSystem, path: str) -> list[str]:
    with (
        fs.open_input_stream(path) as stream,
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text,
    ):
        header = next(csv.reader(text), [])
    if not header:
        raise InputError("the file is empty", file=path)
    return header


def _csv_reader(stream: Any, header: list[str]) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    # Every column as text, which the core reads exactly: a type guessed from the first block would fail in a later one, and what
    # is carried along stays as it is ("007" stays "007").
    return pyarrow.csv.open_csv(
        stream,
        read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            strings_can_be_null=True,
            # A job may be called null; what "null" is in a field is decided where fields are read.
            null_values=[""],
        ),
    )
