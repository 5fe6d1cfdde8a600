"""A run: files of jobs into a folder of plans, each row once, however often it is interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module

from isobatch.errors import InputError, unknown, unwritable
from isobatch.files.find import Files, find, refuse_output
from isobatch.fleet.folder.arguments import arguments_of
from isobatch.fleet.folder.folder import Folder
from isobatch.fleet.folder.manifest import Manifest, Receipt
from isobatch.fleet.folder.parts import Listing, Part, list_parts, refuse_same_names
from isobatch.fleet.folder.work import Failure, Work, digest_of
from isobatch.fleet.query import Query
from isobatch.fleet.results import ON_REQUEST, USUAL
from isobatch.fleet.said import SAID
from isobatch.words import few, shown

ENGINES = ("local", "ray")


def run(
    query: Query,
    jobs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    engine: str = "local",
    resume: bool = True,
    partition_by: str | None = None,
    progress: Callable[[int, int], None] = lambda _done, _parts: None,
    note: Callable[[str], None] | None = None,
) -> Manifest:
    """Plans files of jobs into a folder; see `isobatch.plan_files`. `progress` hears of each part that is done, `note` of columns that
    are no fields; without it those that look like a slip are a warning.

    Raises:
        InputError: the jobs cannot be found, the folder holds other plans or is another run's, or it cannot be written.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, field="engine")
    files = find(jobs)
    listing = list_parts(files, query.rows_per_job, query.needs)
    refuse_same_names(listing.parts)
    if listing.schema is not None:
        _refuse_columns(query, listing.schema.names, partition_by)
        query.say_strays(listing.schema.names, note)
    folder = Folder.at(os.fspath(output))
    refuse_output(files, folder.fs, folder.base)
    work = Work(query, files.fs, listing.schema, folder, partition_by)
    try:
        with folder.held():
            return _run(work, files, listing, engine, resume=resume, progress=progress)
    except OSError as error:
        said = unwritable(error, folder.base)
        raise InputError(f"{said.message}. What is done is kept: rerun to go on", file=folder.base) from None


def _run(
    work: Work,
    files: Files,
    listing: Listing,
    engine: str,
    *,
    resume: bool,
    progress: Callable[[int, int], None],
) -> Manifest:
    folder, parts, failed = work.folder, listing.parts, listing.failed
    arguments = arguments_of(work.query, work.partition_by)
    done, other = folder.done(arguments, resume=resume)
    _refuse_changed(folder, files, parts, failed, done)
    sound = set(done)
    folder.begin(arguments, list(done.values()), other)
    left = [part for part in parts if part.name not in done]
    progress(len(done), len(parts))
    for outcome in import_module(f"isobatch.fleet.folder.{engine}").run(work, left):
        if isinstance(outcome, Failure):
            failed[outcome.part.file] = outcome.why
        else:
            done[outcome.part.name] = outcome
        progress(len(done), len(parts))
    return folder.finish(arguments, done.values(), failed, sound)


def _refuse_columns(query: Query, jobs: Sequence[str], partition_by: str | None) -> None:
    """What no file has is refused before anything is written."""
    carried = () if query.clusters is None else query.clusters.carried
    own = (name for name in jobs if name not in query.fields)
    every = tuple(dict.fromkeys(("job", *own, "cluster", *carried, *USUAL)))
    asked = (*every, *ON_REQUEST, *SAID)
    for name in query.columns or ():
        if name not in asked:
            raise unknown("column", name, asked, field="columns")
    legal = query.columns or every
    if partition_by is not None and partition_by not in legal:
        raise unknown("column", partition_by, legal, field="partition_by")
    if partition_by is not None and partition_by.startswith(("_", ".")):
        raise InputError(
            f"partition_by: folders that begin with {partition_by[0]!r} are not data, rename {shown(partition_by)}",
            field="partition_by",
        )


def _refuse_changed(
    folder: Folder, files: Files, parts: Sequence[Part], failed: dict[str, str], done: dict[str, Receipt]
) -> None:
    """What is done must be what would be done now."""
    now = {part.name: part for part in parts}
    changed = []
    for name, receipt in done.items():
        part = now.get(name)
        if part is None:
            changed.append(
                f"{receipt.part.file} {'cannot be read' if receipt.part.file in failed else 'is gone'}"
            )
        elif not part.same_as(receipt.part) or (
            part.modified != receipt.part.modified and digest_of(files.fs, part) != receipt.digest
        ):
            changed.append(f"{part.file} has changed since it was planned")
    if changed:
        raise InputError(
            f"holds plans of other jobs: {few(changed, 5)}. Plan into another folder, or replan all with --no-resume "
            "(resume=False)",
            file=folder.base,
        )
