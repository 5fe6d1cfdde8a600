"""A part of a fleet, read and planned block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from isobatch.errors import InputError
from isobatch.files.find import Files
from isobatch.files.read import blocks
from isobatch.fleet.doubles import MOST, Hashes, Seen, hashes_of
from isobatch.fleet.folder.parts import Listing, Part, list_parts
from isobatch.fleet.query import Query
from isobatch.fleet.rows import Fleet
from isobatch.fleet.side import double_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

BLOCK = 1 << 17
"""Rows of the result that are planned, and written, at a time, about: a job is not divided."""

_SMALL = 1 << 16
"""Bytes of a file of text that is read, planned and written without threads of its own."""

T = TypeVar("T")
Planned = tuple[Fleet, Any, Any, Any]
"""A block, its plans, and their status codes and reason bits."""


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The items, the next one made in another thread while this one is used."""
    end: Any = object()
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, iterator, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, iterator, end)
            yield item


def fleets(
    query: Query, fs: FileSystem, part: Part, schema: pa.Schema, number: int | None
) -> Iterator[Fleet]:
    """The jobs of a part, one block at least; those without ids are numbered from `number`.

    Raises:
        InputError: the file cannot be read, has other columns than the schema, or needs ids.
    """
    step = max(1, BLOCK // max(1, query.rows_per_job))
    done = 0
    groups = None if part.row_groups is None else range(*part.row_groups)
    for table in blocks(fs, part.file, step, groups, query.fields):
        table = _fitted(table, schema, part.file)
        if number is None and query.clusters is not None and "job" not in schema.names:
            raise InputError(
                "the column job is missing: only a single file, or Parquet files, can do without ids",
                file=part.file,
                field="job",
            )
        yield query.fleet(table, file=part.file, before=part.before + done, number=(number or 0) + done)
        done += table.num_rows


def _fitted(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    import pyarrow as pa

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
    """The jobs of all files, one after the other; `note` as in `run`.

    Raises:
        InputError: one of them cannot be used, or two jobs have one id: this is known at the end, if not before.
    """
    listing = list_parts(files, query.rows_per_job, query.needs)
    for why in listing.failed.values():
        raise InputError(why)
    if listing.schema is not None:
        query.say_strays(listing.schema.names, note)
    seen, full = Seen(), False
    for _, fleet in _of_all(query, files.fs, listing):
        # A row that has its own cluster may be one of several of its job.
        if query.clusters is not None and fleet.jobs.ids is not None:
            hashes = np.sort(hashes_of(fleet.jobs.named_ids))
            _refuse_doubles(query, files.fs, listing, seen.add(hashes))
            if note is not None and seen.ids == MOST and not full:
                full = True
                note(f"duplicate ids are looked for among the first {MOST:,} jobs only")
        yield fleet
    _refuse_doubles(query, files.fs, listing, seen.look())


def _of_all(query: Query, fs: FileSystem, listing: Listing) -> Iterator[tuple[Part, Fleet]]:
    number = 0
    for part in listing.parts:
        for fleet in fleets(query, fs, part, listing.schema, number):
            yield part, fleet
        number = fleet.jobs.number + fleet.jobs.rows


def _refuse_doubles(query: Query, fs: FileSystem, listing: Listing, hashes: Hashes) -> None:
    """Refuses a fleet in which two jobs have one id, of which these hashes are there twice. The files are read again, as far as to the
    first such id: two ids may have one hash.

    Raises:
        InputError: the message names both rows.
    """
    if not len(hashes):
        return
    first: dict[Any, tuple[str, int]] = {}
    for part, fleet in _of_all(query, fs, listing):
        jobs = fleet.jobs
        named = range(jobs.rows) if jobs.nameless is None else np.flatnonzero(~jobs.nameless)
        for at in np.flatnonzero(np.isin(hashes_of(jobs.named_ids), hashes)).tolist():
            row = int(named[at])
            name, here = jobs.numbered[row], (part.file, jobs.before + row + 1)
            name = name.as_py() if hasattr(name, "as_py") else name
            file, other = first.setdefault(name, here)
            if (file, other) != here:
                raise double_id(
                    jobs, name, here[1], f"{'' if file == part.file else f'{file}, '}row {other:,}"
                )


def planned(fleets: Iterable[Fleet]) -> Iterator[Planned]:
    """Their plans; reading, planning and the use of what comes out overlap."""
    return ahead(_plans(ahead(fleets)))


def planned_of(
    query: Query, fs: FileSystem, part: Part, schema: pa.Schema, number: int | None, *, encoded: bool
) -> Iterator[Planned]:
    """The plans of a part; the arguments are those of `fleets` and of `plan_with_status`. Of a single block nothing can overlap, and
    two threads would cost more than a thousand rows."""
    found = fleets(query, fs, part, schema, number)
    return (
        _plans(found, encoded=encoded)
        if _is_one_block(query, part)
        else ahead(_plans(ahead(found), encoded=encoded))
    )


def _plans(fleets: Iterable[Fleet], *, encoded: bool = False) -> Iterator[Planned]:
    return ((fleet, *fleet.plan_with_status(encoded=encoded)) for fleet in fleets)


def _is_one_block(query: Query, part: Part) -> bool:
    if part.rows is None:
        return part.span[1] - part.span[0] <= _SMALL
    return part.rows * query.rows_per_job <= BLOCK
