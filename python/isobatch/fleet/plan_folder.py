"""A folder of plans from files of jobs: each file is a task, and its plans are written whole or not at all.

The footer of a file of plans has a digest of its arguments and its file of jobs. The next run skips the file
if the digest is the same: a run that was stopped at any time goes on with the rest, and gives the same files.
"""

import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from isobatch import _core
from isobatch.errors import InputError, unknown, unwritable
from isobatch.files.find import Files, below, find, location, refuse_output
from isobatch.files.whole import unfinished
from isobatch.files.write import parquet_writer
from isobatch.fleet.job_files import JobFile, list_jobs, name_of, plan_file_blocks
from isobatch.fleet.query import Query
from isobatch.fleet.results import USUAL
from isobatch.fleet.rows import Summary
from isobatch.fleet.table import InputTable
from isobatch.system import count_cores

MAX_RETRIES = 5
"""Of a file whose worker was lost: planning it again does no harm."""
_MADE_OF, _SUMMARY = b"isobatch.made_of", b"isobatch.summary"


class FolderPlans(msgspec.Struct, frozen=True, kw_only=True):
    """The plans in a folder, the number of former files, and the unusable files with the reason."""

    summary: Summary
    skipped: int
    failed: dict[str, str]

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.summary.rows


@dataclass(frozen=True)
class Work:
    """The common input of all tasks of a run; `arguments` is a digest of all input beside the jobs."""

    query: Query
    jobs: FileSystem
    schema: pa.Schema
    output: FileSystem
    base: str
    arguments: str
    resume: bool


class Outcome(msgspec.Struct, frozen=True):
    """A file of jobs with its plans, or why it could not be used."""

    file: JobFile
    summary: Summary
    skipped: bool = False
    why: str | None = None


class Stopped(Exception):
    """The run is being stopped."""


def run(
    query: Query,
    jobs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    engine: str = "local",
    resume: bool = True,
    progress: Callable[[int, int], None] = lambda _done, _files: None,
    note: Callable[[str], None] | None = None,
) -> FolderPlans:
    """Plans files of jobs into a folder; see `isobatch.plan_files`.

    `progress` gets the files that are done and all files, `note` the columns that are no fields (default: a
    warning).

    Raises:
        InputError: the jobs cannot be found, the folder holds anything else, or it cannot be written.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, field="engine")
    files = find(jobs)
    listing = list_jobs(files)
    if listing.schema is not None:
        _refuse_columns(query, listing.schema.names)
        query.tell_unknown_columns(listing.schema.names, note, level=4)
    fs, base = location(os.fspath(output))
    work = Work(query, files.fs, listing.schema, fs, base.rstrip("/"), _digest(*_arguments(query)), resume)
    refuse_output(files, fs, work.base)
    names = _names_of_plans(files)
    outcomes: list[Outcome] = []
    try:
        fs.create_dir(work.base)
        _refuse_strangers(work, names)
        for outcome in ENGINES[engine](work, listing.files):
            outcomes.append(outcome)
            progress(len(outcomes), len(listing.files))
    except OSError as error:
        why = unwritable(error, work.base).message
        raise InputError(f"{why}. Finished files are kept: rerun to go on", file=work.base) from None
    summary = Summary()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.file.name):
        summary.merge(outcome.summary)
    failed = {outcome.file.path: outcome.why for outcome in outcomes if outcome.why is not None}
    skipped = sum(outcome.skipped for outcome in outcomes)
    return FolderPlans(summary=summary, skipped=skipped, failed=failed)


def _refuse_columns(query: Query, jobs: Sequence[str]) -> None:
    """Refuses unknown columns, before anything is written."""
    extra = () if query.clusters is None else query.clusters.extra
    own = (name for name in jobs if name not in query.fields)
    query.refuse_unknown_names(tuple(dict.fromkeys(("job", *own, "cluster", *extra, *USUAL))))


def _names_of_plans(files: Files) -> dict[str, str]:
    """Returns the file of jobs of each file of plans in the folder.

    Raises:
        InputError: two files of jobs would become one.
    """
    names: dict[str, str] = {}
    for info in files.infos:
        name = f"{name_of(files, info)}.parquet"
        if (first := names.setdefault(name, info.path)) != info.path:
            raise InputError(f"becomes {name}, as {first} does: rename one", file=info.path)
    return names


def _refuse_strangers(work: Work, names: dict[str, str]) -> None:
    """Refuses a folder with other files: who reads the folder would take them for plans."""
    for info in work.output.get_file_info(FileSelector(work.base, recursive=True)):
        name = below(info.path, work.base)
        is_hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
        if info.type == FileType.File and not is_hidden and name not in names:
            todo = "move it elsewhere, or plan into another folder"
            raise InputError(f"is not a file of these jobs' plans: {todo}", file=info.path)


# ---- one file ----


def plan_file(work: Work, file: JobFile, stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """Plans a file of jobs into its file of plans, unless it is there; asks `stopped` between blocks.

    Raises:
        OSError: it cannot be written.
        Stopped: the run is being stopped.
    """
    path = f"{work.base}/{file.name}.parquet"
    schema = None if work.schema is None else work.schema.to_string()
    made_of = _digest(work.arguments, schema, file.size, file.modified, file.first_id).encode()
    if work.resume and (summary := _summary_at(work.output, path, made_of)) is not None:
        return Outcome(file, summary, skipped=True)
    summary = Summary()

    def footer() -> dict[bytes, bytes]:
        return {_MADE_OF: made_of, _SUMMARY: msgspec.json.encode(summary)}

    try:
        if "/" in file.name:
            work.output.create_dir(path.rpartition("/")[0], recursive=True)
        with (
            unfinished(work.output, path) as partial,
            parquet_writer(work.output, partial, work.query.metadata, footer) as write,
        ):
            for block, table, status, reasons in plan_file_blocks(work.query, work.jobs, file, work.schema):
                if stopped():
                    raise Stopped
                summary.add(block, status, reasons)
                write(table)
    except InputError as error:
        return Outcome(file, Summary(), why=str(error))
    return Outcome(file, summary)


def _summary_at(fs: FileSystem, path: str, made_of: bytes) -> Summary | None:
    """Reads the summary of a file of plans; None if there is no whole file, or something else made it."""
    import pyarrow.parquet as pq

    try:
        with fs.open_input_file(path) as source:
            footer = pq.read_metadata(source).metadata or {}
        return msgspec.json.decode(footer[_SUMMARY], type=Summary) if footer[_MADE_OF] == made_of else None
    except (OSError, pa.ArrowException, KeyError, msgspec.MsgspecError):
        return None


def _arguments(query: Query) -> Iterator[Any]:
    """Yields all input of the plans beside the jobs."""
    yield _core.__version__, query.settings, query.columns, query.select, query.top, query.decimal
    yield from map(msgspec.json.encode, query.profiles)
    table: InputTable | None = query.clusters
    if table is None:
        return
    yield table.arrow
    for name, data in table.fields:
        yield name, (data[0].tobytes(), data[1]) if isinstance(data, tuple) else data.tobytes()
    for name, column in {**table.extra, table.kind: table.row_ids}.items():
        yield name, column.to_pylist() if table.arrow else column.tolist()


def _digest(*values: Any) -> str:
    """Returns a digest of values, by how Python prints them."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        digest.update(repr(value).encode())
    return digest.hexdigest()


# ---- engines: each maps `plan_file` ----


def _as_done(
    submit: Callable[[JobFile], "Future[Outcome]"], files: Sequence[JobFile], most: int
) -> Iterator[tuple[JobFile, "Future[Outcome]"]]:
    """Submits the files, at most `most` at a time, and yields each file with its future when it is done."""
    waiting, running = iter(files), dict[Future[Outcome], JobFile]()
    while True:
        running |= {submit(file): file for file in itertools.islice(waiting, most - len(running))}
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future


def in_threads(work: Work, files: Sequence[JobFile]) -> Iterator[Outcome]:
    """Plans the files in this process, a thread for each core, and yields their outcomes as they come.

    Raises:
        OSError: the output cannot be written.
    """
    cores, stopped = count_cores(), threading.Event()
    pool = ThreadPoolExecutor(cores)
    try:
        tasks = _as_done(lambda file: pool.submit(plan_file, work, file, stopped.is_set), files, 2 * cores)
        yield from (future.result() for _, future in tasks)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def on_ray(work: Work, files: Sequence[JobFile]) -> Iterator[Outcome]:
    """Plans the files in Ray tasks on the connected cluster, else on a new one here; yields their outcomes.

    Paths travel and rows do not, so every node must see the same files. A file fails if its worker was lost
    too often.

    Raises:
        OSError: the output cannot be written.
        InputError: Ray is not there.
    """
    ray = connect()
    # A copy without what the core holds, which does not travel.
    shared = ray.put(replace(work, query=replace(work.query)))
    task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_task)
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    for file, future in _as_done(lambda file: task.remote(shared, file).future(), files, 2 * cores):
        try:
            yield future.result()
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, OSError) else error) from None
        except ray.exceptions.RayError as error:
            why = f"{file.path}: its worker was lost {MAX_RETRIES + 1} times: {error}"
            yield Outcome(file, Summary(), why=why)


def _task(work: Work, file: JobFile) -> Outcome:
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # Ray gives a task one core
    return plan_file(work, file)


def connect(address: str | None = None) -> Any:
    """Returns Ray, connected to the cluster at the address, else to the current one, else to a new one.

    Raises:
        InputError: Ray is not there, or no cluster at the address.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("needs ray: pip install 'isobatch[ray]'", field="engine") from None
    if address is None and ray.is_initialized():
        return ray
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself would try for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level="WARNING")
    except (OSError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address}: {error}", field="address") from None
    return ray


ENGINES: dict[str, Callable[[Work, Sequence[JobFile]], Iterator[Outcome]]] = {
    "local": in_threads,
    "ray": on_ray,
}
