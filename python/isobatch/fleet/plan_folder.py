"""A folder of plans from files of jobs: each file is a task, and its plans are written whole or not at all.

A file of plans has a digest of its arguments and its file of jobs: the next run skips it where that is equal.
"""

import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from isobatch import _core
from isobatch.errors import InputError, unknown, unwritable
from isobatch.files.find import below, find, location, refuse_output
from isobatch.files.whole import unfinished
from isobatch.files.write import parquet_writer
from isobatch.fleet.job_files import JobFile, list_jobs
from isobatch.fleet.query import Query
from isobatch.fleet.results import USUAL
from isobatch.fleet.rows import Summary
from isobatch.fleet.stream import plan_blocks, read_jobs
from isobatch.system import count_cores

MAX_RETRIES = 5  # of a file whose worker was lost: planning it again does no harm
_SMALL_WORK = 1 << 20
"""Bytes of jobs times clusters that cost less than threads of their own."""
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

    `progress` gets the files that are done and all, `note` the columns other than fields, else a warning.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, field="engine")
    files = find(jobs)
    listed, schema = list_jobs(files)
    if schema is not None:
        extra = () if query.clusters is None else query.clusters.extra
        own = (name for name in schema.names if name not in query.fields)
        query.refuse_unknown_names(tuple(dict.fromkeys(("job", *own, "cluster", *extra, *USUAL))))
        query.tell_unknown_columns(schema.names, note, level=4)
    fs, base = location(os.fspath(output))
    work = Work(query, files.fs, schema, fs, base.rstrip("/"), _digest(*_arguments(query)), resume)
    refuse_output(files, fs, work.base)
    outcomes: list[Outcome] = []
    try:
        _make_folder(work, listed)
        for outcome in ENGINES[engine](work, listed):
            outcomes.append(outcome)
            progress(len(outcomes), len(listed))
    except OSError as error:
        why = unwritable(error, work.base).message
        raise InputError(f"{why}. Finished files are kept: rerun to go on", file=work.base) from None
    summary = Summary()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.file.name):
        summary.merge(outcome.summary)
    failed = {outcome.file.path: outcome.why for outcome in outcomes if outcome.why is not None}
    skipped = sum(outcome.skipped for outcome in outcomes)
    return FolderPlans(summary=summary, skipped=skipped, failed=failed)


def _make_folder(work: Work, files: Sequence[JobFile]) -> None:
    """Makes the folder; refuses other files in it, as its readers would take them for plans."""
    names: dict[str, str] = {}
    for file in files:
        name = f"{file.name}.parquet"
        if (first := names.setdefault(name, file.path)) != file.path:
            raise InputError(f"becomes {name}, as {first} does: rename one", file=file.path)
    work.output.create_dir(work.base)
    for info in work.output.get_file_info(FileSelector(work.base, recursive=True)):
        name = below(info.path, work.base)
        is_hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
        if info.type == FileType.File and not is_hidden and name not in names:
            todo = "move it elsewhere, or plan into another folder"
            raise InputError(f"is not a file of these jobs' plans: {todo}", file=info.path)


def plan_file(work: Work, file: JobFile, stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """Plans a file of jobs into its file of plans, unless it is there; asks `stopped` between blocks."""
    path = f"{work.base}/{file.name}.parquet"
    made_of = work.arguments, work.schema, file.name, file.size, file.modified, file.first_id
    digest = _digest(*made_of, _content(work.jobs, file)).encode()
    if work.resume and (summary := _summary_at(work.output, path, digest)) is not None:
        return Outcome(file, summary, skipped=True)
    summary = Summary()
    try:
        if "/" in file.name:
            work.output.create_dir(path.rpartition("/")[0], recursive=True)
        fleets = read_jobs(work.query, work.jobs, file, work.schema, file.first_id)
        overlap = file.size * work.query.rows_per_job > _SMALL_WORK
        with (
            unfinished(work.output, path) as partial,
            parquet_writer(
                work.output,
                partial,
                work.query.metadata,
                lambda: {_MADE_OF: digest, _SUMMARY: msgspec.json.encode(summary)},
            ) as write,
        ):
            for block, table, *counts in plan_blocks(fleets, overlap=overlap):
                if stopped():
                    raise CancelledError
                summary.add(block, *counts)
                write(table)
    except InputError as error:
        return Outcome(file, Summary(), why=str(error))
    return Outcome(file, summary)


def _summary_at(fs: FileSystem, path: str, digest: bytes) -> Summary | None:
    """Reads the summary of a file of plans; None if there is no whole file, or something else made it."""
    import pyarrow.parquet as pq

    try:
        with fs.open_input_file(path) as source:
            footer = pq.read_metadata(source).metadata or {}
        return msgspec.json.decode(footer[_SUMMARY], type=Summary) if footer[_MADE_OF] == digest else None
    except (OSError, pa.ArrowException, KeyError, msgspec.MsgspecError):
        return None


def _arguments(query: Query) -> Iterator[Any]:
    """Yields all input of the plans beside the jobs."""
    yield _core.__version__, query.settings, query.columns, query.select, query.top, query.decimal
    yield from map(msgspec.json.encode, query.profiles)
    if (clusters := query.clusters) is not None:
        yield clusters.arrow, [(name, clusters.cells(name)) for name, _ in clusters.fields]
        for name, column in {**clusters.extra, "cluster": clusters.row_ids}.items():
            yield name, column.to_pylist() if clusters.arrow else column.tolist()


def _content(fs: FileSystem, file: JobFile) -> str:
    """Returns a digest of a local file's bytes: its clock cannot tell two files of one tick apart.

    Empty for a store, where it would cost a download, and for a file that planning will find unreadable.
    """
    if not isinstance(fs, LocalFileSystem):
        return ""
    try:
        with Path(file.path).open("rb") as content:
            return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return ""


def _digest(*values: Any) -> str:
    """Returns a digest of values, by how Python prints them."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        digest.update(repr(value).encode())
    return digest.hexdigest()


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
    """Plans the files in this process, a thread for each core, and yields their outcomes as they come."""
    stopped, pool = threading.Event(), ThreadPoolExecutor(cores := count_cores())
    try:
        tasks = _as_done(lambda file: pool.submit(plan_file, work, file, stopped.is_set), files, 2 * cores)
        yield from (future.result() for _, future in tasks)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def on_ray(work: Work, files: Sequence[JobFile]) -> Iterator[Outcome]:
    """Plans the files in Ray tasks on shared paths; a worker lost often fails its file."""
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
    """Returns Ray, connected to the cluster at the address, else to the current one, else to a new one."""
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("needs ray: pip install '.[ray]'", field="engine") from None
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


ENGINES = {"local": in_threads, "ray": on_ray}
