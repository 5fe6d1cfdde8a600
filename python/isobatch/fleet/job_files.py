"""Files of jobs: which there are, the schema that they share, and their jobs and plans block by block."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem

from isobatch.errors import InputError
from isobatch.files.find import Files, below, format_of, naming_file
from isobatch.files.read import blocks
from isobatch.fleet.query import Query
from isobatch.fleet.rows import Fleet
from isobatch.fleet.table import REQUIRED

BLOCK_ROWS = 1 << 17
"""Rows of the result that are planned and written at a time, about: a job is not divided."""
_SMALL_FILE_BYTES = 1 << 16
"""Bytes of a text file that gets no threads of its own."""
_HEADS_AT_ONCE, _HEAD_THREADS = 1 << 12, 16

T = TypeVar("T")
Head: TypeAlias = tuple[int | None, pa.Schema | None]
"""The rows of a file and its schema; None: not known without reading the file."""
PlannedBlock: TypeAlias = tuple[Fleet, Any, Any, Any]
"""A block, its plans, and their status codes and reason bits."""


class JobFile(msgspec.Struct, frozen=True):
    """A file of jobs.

    `name` is its path below the folder, without the suffix; `modified` is in ns; `rows` is None if only a
    whole read tells. Jobs without ids are numbered from `first_id`, None if the jobs of the files before are
    not counted.
    """

    path: str
    name: str
    size: int
    modified: int | None
    rows: int | None = None
    first_id: int | None = 0


class Listing(NamedTuple):
    """The files of jobs and their most frequent schema; None: no file has a schema."""

    files: list[JobFile]
    schema: pa.Schema | None


def list_jobs(files: Files) -> Listing:
    """Lists files of jobs in their order; an unusable file fails when it is read, and condemns no other."""
    listed: list[JobFile] = []
    schemas: dict[tuple[str, ...], tuple[int, pa.Schema]] = {}  # files by their columns, and a schema for all
    first_id: int | None = 0
    for info, (rows, schema) in zip(files.infos, _read_heads(files), strict=True):
        if schema is not None and _has_jobs(schema):
            count, common = schemas.get(tuple(schema.names), (0, schema))
            schemas[tuple(schema.names)] = count + 1, _common(common, schema)
        listed.append(JobFile(info.path, name_of(files, info), info.size, info.mtime_ns, rows, first_id))
        first_id = None if first_id is None or rows is None else first_id + rows
    model = max(schemas.values(), key=lambda pair: pair[0])[1] if schemas else _first_schema(files.fs, listed)
    if model is not None and "job" in model.names:
        listed = [msgspec.structs.replace(file, first_id=0) for file in listed]
    return Listing(listed, model)


def name_of(files: Files, info: FileInfo) -> str:
    """Returns the path of a file below its folder, without its suffix."""
    name = below(info.path, files.base)
    return name[: len(name) - len(PurePosixPath(name).suffix)]


def _read_heads(files: Files) -> Iterator[Head]:
    """Reads the heads of the files in threads: each waits for a disk or a store."""
    with ThreadPoolExecutor(_HEAD_THREADS) as pool:
        for start in range(0, len(files.infos), _HEADS_AT_ONCE):
            infos = files.infos[start : start + _HEADS_AT_ONCE]
            yield from pool.map(lambda info: _read_head(files.fs, info.path), infos)


def _read_head(fs: FileSystem, path: str) -> Head:
    kind = format_of(path)
    if kind != "parquet":
        return None, _read_schema(fs, path) if kind == "csv" else None
    import pyarrow.parquet as pq

    try:
        with naming_file(path), fs.open_input_file(path) as source:
            footer = pq.read_metadata(source)
            return footer.num_rows, footer.schema.to_arrow_schema()
    except InputError:
        return None, None


def _read_schema(fs: FileSystem, path: str) -> pa.Schema | None:
    try:
        return next(blocks(fs, path, 1)).schema
    except InputError:
        return None


def _has_jobs(schema: pa.Schema) -> bool:
    return set(REQUIRED["job"]) <= set(schema.names)


def _first_schema(fs: FileSystem, files: Iterable[JobFile]) -> pa.Schema | None:
    """Returns the schema of the first file of jobs, else of the first table (JSON lines have no heads)."""
    first = None
    for schema in (_read_schema(fs, file.path) for file in files):
        if schema is not None and _has_jobs(schema):
            return schema
        first = first or schema
    return first


def _common(schema: pa.Schema, another: pa.Schema) -> pa.Schema:
    """Returns a schema for both files, else the first: the second file then fails when it is read."""
    if schema.equals(another, check_metadata=True):
        return schema
    try:
        return pa.unify_schemas([schema, another], promote_options="permissive")
    except pa.ArrowException:
        return schema


def read_jobs(
    query: Query, fs: FileSystem, file: JobFile, schema: pa.Schema, first_id: int | None
) -> Iterator[Fleet]:
    """Reads the jobs of a file, at least one block; jobs without ids are numbered from `first_id`.

    Raises:
        InputError: the file cannot be read, has other columns than the schema, or needs ids.
    """
    rows_read, step = 0, max(1, BLOCK_ROWS // max(1, query.rows_per_job))
    for table in blocks(fs, file.path, step, query.fields):
        table = _fitted(table, schema, file.path)
        if first_id is None and query.clusters is not None and "job" not in schema.names:
            why = "only a single file, or Parquet files, may omit ids"
            raise InputError(f"the column job is missing: {why}", file=file.path, field="job")
        yield query.fleet(table, file=file.path, row_offset=rows_read, first_id=(first_id or 0) + rows_read)
        rows_read += table.num_rows


def _fitted(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    if table.column_names != schema.names:
        missing = [name for name in schema.names if name not in table.column_names]
        new = [name for name in table.column_names if name not in schema.names]
        difference = f"missing: {', '.join(missing) or 'none'}; new: {', '.join(new) or 'none'}"
        if not missing and not new:
            difference = "another order, or a column twice"
        raise InputError(f"its columns are not those of the other files: {difference}", file=file)
    # A column that came as a dictionary may stay one.
    encoded = {f.name: f.type for f in table.schema if pa.types.is_dictionary(f.type)}
    fields = [f.with_type(encoded.get(f.name, f.type)) if pa.types.is_string(f.type) else f for f in schema]
    try:
        return table.cast(pa.schema(fields, schema.metadata))
    except pa.ArrowException as error:
        raise InputError(f"its columns do not fit those of the other files: {error}", file=file) from None


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yields the items, and makes the next item in another thread while this one is used."""
    end: Any = object()
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, iterator, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, iterator, end)
            yield item


def plan_blocks(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    """Plans blocks; reading, planning and the use of the plans overlap."""
    return ahead(_plans(ahead(fleets)))


def _plans(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    return ((fleet, *fleet.plan_with_status()) for fleet in fleets)


def plan_file_blocks(
    query: Query, fs: FileSystem, file: JobFile, schema: pa.Schema
) -> Iterator[PlannedBlock]:
    """Plans the blocks of a file; a single block in this thread, as two more cost more than its rows."""
    fleets = read_jobs(query, fs, file, schema, file.first_id)
    if file.rows is None:
        is_single = file.size <= _SMALL_FILE_BYTES
    else:
        is_single = file.rows * query.rows_per_job <= BLOCK_ROWS
    return _plans(fleets) if is_single else plan_blocks(fleets)
