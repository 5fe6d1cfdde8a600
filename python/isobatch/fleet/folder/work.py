"""Parts of a fleet: read and planned block by block, written whole, their receipts left beside."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from isobatch.errors import InputError
from isobatch.files.find import Files
from isobatch.files.read import blocks
from isobatch.files.whole import removed_if_failed, whole
from isobatch.files.write import parquet_writer
from isobatch.fleet.folder.folder import Folder, Receipt
from isobatch.fleet.folder.parts import Listing, Part, list_parts, new_digest
from isobatch.fleet.ids import MAX_HASHED_IDS, Hashes, duplicate_id, duplicates, hashes_of
from isobatch.fleet.query import Query
from isobatch.fleet.rows import Fleet, Summary

BLOCK_ROWS = 1 << 17
"""Rows of the result that are planned, and written, at a time, about: a job is not divided."""

_SMALL_FILE_BYTES = 1 << 16
"""Of text that is read, planned and written without threads of its own."""

T = TypeVar("T")
PlannedBlock = tuple[Fleet, Any, Any, Any]
"""A block, its plans, and their status codes and reason bits."""


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


def read_part(
    query: Query, fs: FileSystem, part: Part, schema: pa.Schema, number: int | None
) -> Iterator[Fleet]:
    """Reads the jobs of a part, one block at least; those without ids are numbered from `number`.

    Raises:
        InputError: the file cannot be read, has other columns than the schema, or needs ids.
    """
    step = max(1, BLOCK_ROWS // max(1, query.rows_per_job))
    done = 0
    groups = None if part.row_groups is None else range(*part.row_groups)
    for table in blocks(fs, part.file, step, groups, query.fields):
        table = _fitted(table, schema, part.file)
        if number is None and query.clusters is not None and "job" not in schema.names:
            why = "only a single file, or Parquet files, can do without ids"
            raise InputError(f"the column job is missing: {why}", file=part.file, field="job")
        yield query.fleet(table, file=part.file, row_offset=part.before + done, first_id=(number or 0) + done)
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


def stream(query: Query, files: Files, *, note: Callable[[str], None] | None = None) -> Iterator[Fleet]:
    """Reads the jobs of all files, one after the other; `note` as in `run`.

    Raises:
        InputError: one of them cannot be used, or, at the end, two jobs have one id.
    """
    listing = list_parts(files, query.rows_per_job)
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


def _read_all(query: Query, fs: FileSystem, listing: Listing) -> Iterator[tuple[Part, Fleet]]:
    number = 0
    for part in listing.parts:
        for fleet in read_part(query, fs, part, listing.schema, number):
            yield part, fleet
        number = fleet.jobs.first_id + fleet.jobs.rows


def _refuse_duplicates(query: Query, fs: FileSystem, listing: Listing, hashes: Hashes) -> None:
    """Refuses a fleet with one id, and so one of these hashes, in two jobs. The files are read again, as far as to the first such
    id: two ids may have one hash.

    Raises:
        InputError: naming both rows.
    """
    if not len(hashes):
        return
    first: dict[Any, tuple[str, int]] = {}
    for part, fleet in _read_all(query, fs, listing):
        jobs = fleet.jobs
        rows = np.arange(jobs.rows) if jobs.missing_ids is None else np.flatnonzero(~jobs.missing_ids)
        for row in rows[np.isin(hashes_of(jobs.present_ids), hashes)].tolist():
            name, here = jobs.ids[row].as_py(), (part.file, jobs.row_offset + row + 1)
            file, other = first.setdefault(name, here)
            if (file, other) != here:
                place = f"{'' if file == part.file else f'{file}, '}row {other:,}"
                raise duplicate_id("job", name, part.file, here[1], place)


def plan_blocks(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    """Plans blocks; reading, planning and the use of the plans overlap."""
    return ahead(_plans(ahead(fleets)))


def _plans(fleets: Iterable[Fleet]) -> Iterator[PlannedBlock]:
    return ((fleet, *fleet.plan_with_status()) for fleet in fleets)


def _plan_part_blocks(work: "Work", part: Part) -> Iterator[PlannedBlock]:
    """Plans the blocks of a part. Of a single one nothing can overlap, and two threads would cost more than a thousand rows."""
    found = read_part(work.query, work.fs, part, work.schema, part.number)
    if part.rows is None:
        is_one = part.span[1] - part.span[0] <= _SMALL_FILE_BYTES
    else:
        is_one = part.rows * work.query.rows_per_job <= BLOCK_ROWS
    return _plans(found) if is_one else ahead(_plans(ahead(found)))


# Writing


class Failure(msgspec.Struct, frozen=True):
    """A part with an unusable file, and why."""

    part: Part
    why: str


@dataclass(frozen=True)
class Work:
    """The context of all parts of a run."""

    query: Query
    fs: FileSystem
    schema: pa.Schema
    folder: Folder


class Stopped(Exception):
    """The run is being stopped."""


def plan_parts(
    work: Work, parts: Sequence[Part], stopped: Callable[[], bool] = lambda: False
) -> list[Receipt | Failure]:
    """Plans parts into their files, and moves these to their places together when all are whole and their receipts are written. `stopped` is asked
    between blocks.

    Raises:
        OSError: they cannot be written.
        Stopped: the run is being stopped.
    """
    outcomes: list[Receipt | Failure] = []
    places: dict[str, str] = {}
    with whole(work.folder.fs, places, work.folder.base):
        for part in parts:
            try:
                receipt, its_places = _plan_part(work, part, stopped)
            except InputError as error:
                outcomes.append(Failure(part, str(error)))
            else:
                outcomes.append(receipt)
                places |= its_places
        # A run that is killed between the two leaves no file that nothing knows.
        work.folder.keep([outcome for outcome in outcomes if isinstance(outcome, Receipt)])
    return outcomes


def _plan_part(work: Work, part: Part, stopped: Callable[[], bool]) -> tuple[Receipt, dict[str, str]]:
    """Returns the receipt of a part, before its file is in its place, and the place by where the file is now."""
    summary, jobs, folder = Summary(), 0, work.folder
    digest, file_digest = part.digest(work.fs), new_digest()
    partial, place = folder.partial(), folder.path(f"{part.name}.parquet")
    folder.fs.create_dir(place.rpartition("/")[0], recursive=True)
    places = {partial: place}
    with (
        removed_if_failed(folder.fs, places),
        parquet_writer(folder.fs, partial, work.query.metadata, file_digest) as write,
    ):
        for block, table, status, reasons in _plan_part_blocks(work, part):
            if stopped():
                raise Stopped
            summary.add(block, status, reasons)
            jobs += block.jobs.rows
            write(table)
    return Receipt(part, digest, jobs, summary, str(file_digest.hexdigest())), places
