"""Parts of a fleet: read, planned, written whole, their receipts left beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from isobatch.errors import InputError
from isobatch.files.find import named
from isobatch.files.write import Write, parquet_writer, removed_if_failed, whole
from isobatch.fleet.folder.blocks import planned_of
from isobatch.fleet.folder.digest import new_digest
from isobatch.fleet.folder.folder import Folder
from isobatch.fleet.folder.manifest import Receipt
from isobatch.fleet.folder.parts import Part
from isobatch.fleet.folder.summary import Summary
from isobatch.fleet.query import Query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

MOST_VALUES = 1000
"""Of the column that an output is partitioned by: each holds a file open."""


class Failure(msgspec.Struct, frozen=True):
    """A part whose file cannot be used, and why."""

    part: Part
    why: str


@dataclass(frozen=True)
class Work:
    """What all parts of a run have in common."""

    query: Query
    fs: FileSystem
    schema: pa.Schema
    folder: Folder
    partition_by: str | None


class Stopped(Exception):
    """The run is being stopped."""


def plan_parts(
    work: Work, parts: Sequence[Part], stopped: Callable[[], bool] = lambda: False
) -> list[Receipt | Failure]:
    """Plans parts into their files, which get their places together when all are whole and their receipts are kept. `stopped` is asked
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
    """The receipt of a part whose files are not in their places yet, and these by where the files are now."""
    summary = Summary()
    jobs = 0
    digest = digest_of(work.fs, part)
    places: dict[str, str] = {}
    written: dict[str, _Written] = {}
    with removed_if_failed(work.folder.fs, places), ExitStack() as opened:
        encoded = work.partition_by != "status"
        for block, table, status, reasons in planned_of(
            work.query, work.fs, part, work.schema, part.number, encoded=encoded
        ):
            if stopped():
                raise Stopped
            summary.add(block, status, reasons)
            jobs += block.jobs.rows
            for place, some in _partitioned(table, work.partition_by):
                name = f"{place}{part.name}.parquet"
                if name not in written:
                    if len(written) == MOST_VALUES:
                        raise InputError(
                            f"{work.partition_by} has more than {MOST_VALUES:,} values: partition by another column",
                            file=part.file,
                            field=work.partition_by,
                        )
                    written[name] = _open(work, name, places, opened)
                written[name].append(some)
    receipt = Receipt(
        part,
        digest,
        jobs,
        {name: file.rows for name, file in written.items()},
        summary,
        {name: file.digest.hexdigest() for name, file in written.items()},
    )
    return receipt, places


@dataclass
class _Written:
    """A file of plans, while it is written."""

    write: Write
    digest: Any
    rows: int = 0

    def append(self, table: pa.Table) -> None:
        self.write(table)
        self.rows += table.num_rows


def _open(work: Work, name: str, places: dict[str, str], opened: ExitStack) -> _Written:
    folder = work.folder
    partial = folder.partial()
    places[partial] = folder.path(name)
    folder.fs.create_dir(folder.path(name).rpartition("/")[0], recursive=True)
    digest = new_digest()
    return _Written(
        opened.enter_context(parquet_writer(folder.fs, partial, work.query.metadata, digest, ("status",))),
        digest,
    )


def _partitioned(table: pa.Table, by: str | None) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each value of a column, and the folder that they belong in."""
    if by is None:
        yield "", table
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    column, rest = table[by], table.drop_columns([by])
    if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
        raise InputError(f"partition_by: {by} is {column.type}, and no folder's name", field="partition_by")
    folder = quote(by, safe="")
    for value in column.unique():
        if value.is_valid:
            yield f"{folder}={quote(str(value), safe='')}/", rest.filter(pc.equal(column, value))
        else:
            yield f"{folder}=__HIVE_DEFAULT_PARTITION__/", rest.filter(pc.is_null(column))


def digest_of(fs: FileSystem, part: Part) -> str:
    """BLAKE2b of a part's bytes."""
    digest = new_digest()
    start, stop = part.span
    with named(part.file), fs.open_input_file(part.file) as file:
        file.seek(start)
        while start < stop:
            data = file.read(min(1 << 22, stop - start))
            if not data:
                raise InputError("has become shorter while it was read", file=part.file)
            digest.update(data)
            start += len(data)
    return str(digest.hexdigest())
