"""Jobs in files: which files there are and with which columns, and their jobs and plans block by block."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem

from isobatch.errors import InputError
from isobatch.files.find import Files, below, format_of, naming_file
from isobatch.files.read import blocks
from isobatch.fleet.ids import MAX_HASHED_IDS, Hashes, duplicate_id, duplicates, hashes_of
from isobatch.fleet.query import Query
from isobatch.fleet.rows import Fleet
from isobatch.fleet.table import REQUIRED

BLOCK_ROWS = 1 << 17
"""Rows of the result that are planned, and written, at a time, about: a job is not divided."""

_SMALL_FILE_BYTES = 1 << 16
"""Of text that is read, planned and written without threads of its own."""
_LOOKING_THREADS, _LOOKED_AT_ONCE = 16, 1 << 12

T = TypeVar("T")
PlannedBlock: TypeAlias = tuple[Fleet, Any, Any, Any]
"""A block, its plans, and their status codes and reason bits."""


class JobFile(msgspec.Struct, frozen=True):
    """A file of jobs.

    `name` is its path below the folder, without its suffix; `modified` is in ns; `rows` is None where it is not known without
    reading all. Jobs without ids are numbered from `first_id`, the jobs in the files before; None where these are not known.
    """

    path: str
    name: str
    size: int
    modified: int | None
    rows: int | None = None
    first_id: int | None = 0


class Listing(NamedTuple):
    """The files of jobs, their common schema (None where there is none), and by its path why a file cannot be used."""

    files: list[JobFile]
    schema: pa.Schema | None
    failed: dict[str, str]


def list_jobs(files: Files) -> Listing:
    """Lists files of jobs in their order, with a schema that fits the most of them."""
    listed: list[JobFile] = []
    failed: dict[str, str] = {}
    # By column names: how many files have these columns, and a schema for all of them.
    schemas: dict[tuple[str, ...], tuple[int, pa.Schema]] = {}
    first_id: int | None = 0
    for info, (file, schema, why) in zip(files.infos, _look_at(files), strict=True):
        if why is not None:
            failed[info.path], first_id = why, None
            continue
        if schema is not None and set(REQUIRED["job"]) <= set(schema.names):
            count, common = schemas.get(tuple(schema.names), (0, schema))
            schemas[tuple(schema.names)] = count + 1, _common(common, schema)
        listed.append(msgspec.structs.replace(file, first_id=first_id))
        first_id = None if first_id is None or file.rows is None else first_id + file.rows
    # A file that is no table of jobs condemns no other: it fails when it is read. Ties go to the first.
    model = max(schemas.values(), key=lambda pair: pair[0])[1] if schemas else _first_schema(files.fs, listed)
    if model is not None and "job" in model.names:
        listed = [msgspec.structs.replace(file, first_id=0) for file in listed]
    return Listing(listed, model, failed)


def _look_at(files: Files) -> Iterator[tuple[JobFile, pa.Schema | None, str | None]]:
    """Looks at the heads of the files in threads, as mostly they wait for a disk or a store: the file, its schema where the head has one,
    and why it cannot be used."""
    with ThreadPoolExecutor(_LOOKING_THREADS) as pool:
        for start in range(0, len(files.infos), _LOOKED_AT_ONCE):
            some = files.infos[start : start + _LOOKED_AT_ONCE]
            yield from pool.map(lambda info: _look(files, info), some)


def _look(files: Files, info: FileInfo) -> tuple[JobFile, pa.Schema | None, str | None]:
    file = JobFile(info.path, name_of(files, info), info.size, info.mtime_ns)
    if (kind := format_of(info.path)) != "parquet":
        return file, _read_schema(files.fs, info.path) if kind == "csv" else None, None
    import pyarrow.parquet as pq

    try:
        with naming_file(info.path), files.fs.open_input_file(info.path) as source:
            footer = pq.read_metadata(source)
            return msgspec.structs.replace(file, rows=footer.num_rows), footer.schema.to_arrow_schema(), None
    except InputError as error:
        return file, None, str(error)


def name_of(files: Files, info: FileInfo) -> str:
    """Returns the path of a file below its folder, without its suffix."""
    name = below(info.path, files.base)
    return name[: len(name) - len(PurePosixPath(name).suffix)]


def _common(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Returns a schema for both files, else the first: the second file then fails when it is read."""
    if schema.equals(other, check_metadata=True):
        return schema
    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowException:
        return schema


def _first_schema(fs: FileSystem, files: Iterable[JobFile]) -> pa.Schema | None:
    """Returns the schema of the first file of jobs, where none is known without reading a file: JSON lines."""
    first = None
    for schema in (_read_schema(fs, file.path) for file in files):
        if schema is not None and set(REQUIRED["job"]) <= set(schema.names):
            return schema
        first = first or schema
    return first


def _read_schema(fs: FileSystem, path: str) -> pa.Schema | None:
    try:
        return next(blocks(fs, path, 1)).schema
    except InputError:
        return None


# Reading and planning


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Gives the items, and makes the next one in another thread while this one is used."""
    end: Any = object()
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, iterator, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, iterator, end)
            yield item


def read_jobs(
    query: Query, fs: FileSystem, file: JobFile, schema: pa.Schema, first_id: int | None
) -> Iterator[Fleet]:
    """Reads the jobs of a file, one block at least; those without ids are numbered from `first_id`.

    Raises:
        InputError: the file cannot be read, has other columns than the schema, or needs ids.
    """
    done, step = 0, max(1, BLOCK_ROWS // max(1, query.rows_per_job))
    for table in blocks(fs, file.path, step, query.fields):
        table = _fitted(table, schema, file.path)
        if first_id is None and query.clusters is not None and "job" not in schema.names:
            why = "only a single file, or Parquet files, can do without ids"
            raise InputError(f"the column job is missing: {why}", file=file.path, field="job")
        yield query.fleet(table, file=file.path, row_offset=done, first_id=(first_id or 0) + done)
        done += table.num_rows


def _fitted(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    if table.column_names != schema.names:
        missing = [name for name in schema.names if name not in table.column_names]
        new = [name for name in table.column_names if name not in schema.names]
        what = f"missing: {', '.join(missing) or 'none'}; new: {', '.join(new) or 'none'}"
        if not missing and not new:
            what = "another order, or one of them twice"
        raise InputError(f"its columns are not those of the other files: {what}", file=file)
    # What came as a dictionary may stay one.
    encoded = {f.name: f.type for f in table.schema if pa.types.is_dictionary(f.type)}
    fields = [f.with_type(encoded.get(f.name, f.type)) if pa.types.is_string(f.type) else f for f in schema]
    try:
        return table.cast(pa.schema(fields, schema.metadata))
    except pa.ArrowException as error:
        raise InputError(f"its columns do not fit those of the other files: {error}", file=file) from None


def plan_blocks(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    """Plans blocks; reading, planning and the use of the plans overlap."""
    return ahead(_plans(ahead(fleets)))


def _plans(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    return ((fleet, *fleet.plan_with_status()) for fleet in fleets)


def plan_file_blocks(
    query: Query, fs: FileSystem, file: JobFile, schema: pa.Schema
) -> Iterator[PlannedBlock]:
    """Plans the blocks of a file. Of a single one nothing can overlap, and two threads would cost more than a thousand rows."""
    fleets = read_jobs(query, fs, file, schema, file.first_id)
    if file.rows is None:
        is_one = file.size <= _SMALL_FILE_BYTES
    else:
        is_one = file.rows * query.rows_per_job <= BLOCK_ROWS
    return _plans(fleets) if is_one else plan_blocks(fleets)


# All files as one stream


def stream(query: Query, files: Files, *, note: Callable[[str], None] | None = None) -> Iterator[Fleet]:
    """Reads the jobs of all files, one after the other; `note` hears of columns that are no fields.

    Raises:
        InputError: one of them cannot be used, or, at the end, two jobs have one id.
    """
    listing = list_jobs(files)
    for why in listing.failed.values():
        raise InputError(why)
    if listing.schema is not None:
        query.tell_unknown_columns(listing.schema.names, note)
    hashes: list[Hashes] = []
    room = MAX_HASHED_IDS
    for _, fleet in _read_all(query, files.fs, listing):
        # A row that has its own cluster may be one of several of its job.
        if query.clusters is not None and fleet.jobs.ids is not None and room:
            hashes.append(hashes_of(fleet.jobs.present_ids)[:room])
            room -= len(hashes[-1])
            if note is not None and not room:
                note(f"duplicate ids are looked for among the first {MAX_HASHED_IDS:,} jobs only")
        yield fleet
    _refuse_duplicates(query, files.fs, listing, duplicates(hashes))


def _read_all(query: Query, fs: FileSystem, listing: Listing) -> Iterator[tuple[str, Fleet]]:
    first_id = 0
    for file in listing.files:
        for fleet in read_jobs(query, fs, file, listing.schema, first_id):
            yield file.path, fleet
        first_id = fleet.jobs.first_id + fleet.jobs.rows


def _refuse_duplicates(query: Query, fs: FileSystem, listing: Listing, hashes: Hashes) -> None:
    """Refuses a fleet with one id, and so one of these hashes, in two jobs. The files are read again, as far as to the first such
    id: two ids may have one hash.

    Raises:
        InputError: naming both rows.
    """
    if not len(hashes):
        return
    first: dict[Any, tuple[str, int]] = {}
    for path, fleet in _read_all(query, fs, listing):
        jobs = fleet.jobs
        rows = np.arange(jobs.rows) if jobs.missing_ids is None else np.flatnonzero(~jobs.missing_ids)
        for row in rows[np.isin(hashes_of(jobs.present_ids), hashes)].tolist():
            name, here = jobs.ids[row].as_py(), (path, jobs.row_offset + row + 1)
            file, other = first.setdefault(name, here)
            if (file, other) != here:
                place = f"{'' if file == path else f'{file}, '}row {other:,}"
                raise duplicate_id("job", name, path, here[1], place)
