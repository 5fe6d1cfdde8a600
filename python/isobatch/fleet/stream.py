"""The jobs of many files as one stream, for one output; a duplicate job is refused at the end."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from pyarrow.fs import FileSystem

from isobatch.files.find import Files
from isobatch.fleet.ids import MAX_HASHED_IDS, Hashes, duplicate_id, duplicates, hashes_of
from isobatch.fleet.job_files import Listing, list_jobs, read_jobs
from isobatch.fleet.query import Query
from isobatch.fleet.rows import Fleet


def stream(query: Query, files: Files, *, note: Callable[[str], None] | None = None) -> Iterator[Fleet]:
    """Reads the jobs of all files, one after the other; `note` gets the columns other than fields.

    Raises:
        InputError: one of them cannot be used, or, at the end, two jobs have one id.
    """
    listing = list_jobs(files)
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
                note(f"duplicate ids are only detected among the first {MAX_HASHED_IDS:,} jobs only")
        yield fleet
    _refuse_duplicates(query, files.fs, listing, duplicates(hashes))


def _read_all(query: Query, fs: FileSystem, listing: Listing) -> Iterator[tuple[str, Fleet]]:
    first_id = 0
    for file in listing.files:
        for fleet in read_jobs(query, fs, file, listing.schema, first_id):
            yield file.path, fleet
        first_id = fleet.jobs.first_id + fleet.jobs.rows


def _refuse_duplicates(query: Query, fs: FileSystem, listing: Listing, hashes: Hashes) -> None:
    """Refuses a fleet with one id in two jobs, and so one of these hashes.

    Two ids may have one hash, so the files are read again, up to the first duplicate id.

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
            name, place_here = jobs.ids[row].as_py(), (path, jobs.row_offset + row + 1)
            file, first_row = first.setdefault(name, place_here)
            if (file, first_row) != place_here:
                place = f"{'' if file == path else f'{file}, '}row {first_row:,}"
                raise duplicate_id("job", name, path, place_here[1], place)
