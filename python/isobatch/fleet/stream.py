"""The jobs of files block by block, planned ahead; those of many files as one stream, for one output."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from isobatch.errors import InputError
from isobatch.files.find import Files
from isobatch.files.read import blocks
from isobatch.fleet.ids import MAX_HASHED_IDS, Hashes, duplicate_id, duplicates, hashes_of, present_ids
from isobatch.fleet.job_files import JobFile, list_jobs
from isobatch.fleet.query import Query
from isobatch.fleet.rows import Fleet

BLOCK_ROWS = 1 << 17
"""Rows of the result that are planned and written at a time, about: a job is not divided."""

T = TypeVar("T")
PlannedBlock: TypeAlias = tuple[Fleet, Any, Any, Any, int]
"""A block, its plans, and their status codes and reason bits."""


def read_jobs(
    query: Query, fs: FileSystem, file: JobFile, schema: pa.Schema, first_id: int | None
) -> Iterator[Fleet]:
    """Reads the jobs of a file, at least one block; jobs without ids are numbered from `first_id`."""
    rows_read, step = 0, max(1, BLOCK_ROWS // max(1, query.rows_per_job))
    for table in blocks(fs, file.path, step, query.fields):
        if first_id is None and query.clusters is not None and "job" not in schema.names:
            why = "only a single file, or Parquet files, may omit ids"
            raise InputError(f"the column job is missing: {why}", file=file.path, field="job")
        table = _fitted(table, schema, file.path)
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


def plan_blocks(fleets: Iterable[Fleet], *, overlap: bool = True) -> Iterator[PlannedBlock]:
    """Plans blocks; reading, planning and the use of the plans overlap, in two more threads."""
    return ahead(_plans(ahead(fleets))) if overlap else _plans(fleets)


def _plans(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    return ((fleet, *fleet.plan_with_status()) for fleet in fleets)


def stream(query: Query, files: Files, *, note: Callable[[str], None]) -> Iterator[Fleet]:
    """Reads the jobs of all files, one after the other; `note` gets the columns other than fields."""
    listed, schema = list_jobs(files)
    if schema is not None:
        query.tell_unknown_columns(schema.names, note)
    hashes: list[Hashes] = []
    room = MAX_HASHED_IDS
    for _, fleet in _read_all(query, files.fs, listed, schema):
        # A row that has its own cluster may be one of several of its job.
        if query.clusters is not None and fleet.jobs.ids is not None and room:
            hashes.append(hashes_of(present_ids(fleet.jobs.ids, fleet.jobs.missing_ids))[:room])
            room -= len(hashes[-1])
            if not room:
                note(f"duplicate ids are only detected among the first {MAX_HASHED_IDS:,} jobs only")
        yield fleet
    if len(doubled := duplicates(hashes)):
        _refuse_duplicates(_read_all(query, files.fs, listed, schema), doubled)


def _read_all(
    query: Query, fs: FileSystem, files: Sequence[JobFile], schema: pa.Schema
) -> Iterator[tuple[str, Fleet]]:
    first_id = 0
    for file in files:
        for fleet in read_jobs(query, fs, file, schema, first_id):
            yield file.path, fleet
        first_id = fleet.jobs.first_id + fleet.jobs.rows


def _refuse_duplicates(fleets: Iterable[tuple[str, Fleet]], hashes: Hashes) -> None:
    """Refuses two jobs of one id, and so of one of these hashes; other ids may share a hash."""
    first: dict[Any, tuple[str, int]] = {}
    for path, fleet in fleets:
        jobs = fleet.jobs
        rows = present_ids(np.arange(jobs.rows), jobs.missing_ids)
        hashes_here = hashes_of(present_ids(jobs.ids, jobs.missing_ids))
        for row in rows[np.isin(hashes_here, hashes)].tolist():
            name, place_here = jobs.ids[row].as_py(), (path, jobs.row_offset + row + 1)
            file, first_row = first.setdefault(name, place_here)
            if (file, first_row) != place_here:
                place = f"{'' if file == path else f'{file}, '}row {first_row:,}"
                raise duplicate_id("job", name, path, place_here[1], place)
