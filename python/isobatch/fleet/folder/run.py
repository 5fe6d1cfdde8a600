"""A run: files of jobs into a folder of plans, each row once, however often it is interrupted."""

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import msgspec

from isobatch import _core
from isobatch.errors import InputError, unknown, unwritable
from isobatch.files.find import Files, find, refuse_output
from isobatch.fleet.folder.folder import Folder, Manifest, Receipt, other_plans
from isobatch.fleet.folder.parts import Listing, Part, group_parts, list_parts, new_digest, refuse_same_names
from isobatch.fleet.folder.work import BLOCK_ROWS, Failure, Work, plan_parts
from isobatch.fleet.query import Query
from isobatch.fleet.results import USUAL
from isobatch.fleet.table import InputTable
from isobatch.words import counted, few, printable

MAX_RETRIES = 5
"""Of a part whose worker or node was lost. Planning it again does no harm: its files appear under the same names."""


def run(
    query: Query,
    jobs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    engine: str = "local",
    resume: bool = True,
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
    listing = list_parts(files, query.rows_per_job)
    refuse_same_names(listing.parts)
    if listing.schema is not None:
        _refuse_columns(query, listing.schema.names)
        query.tell_unknown_columns(listing.schema.names, note, level=4)
    folder = Folder.at(os.fspath(output))
    refuse_output(files, folder.fs, folder.base)
    work = Work(query, files.fs, listing.schema, folder)
    try:
        with folder.locked():
            return _run(work, files, listing, engine, resume=resume, progress=progress)
    except OSError as error:
        why = unwritable(error, folder.base).message
        raise InputError(f"{why}. What is done is kept: rerun to go on", file=folder.base) from None


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
    arguments = _arguments(work.query)
    done, other = folder.done(arguments, resume=resume)
    _refuse_changed(folder, files, parts, failed, done)
    folder.begin(arguments, list(done.values()), other)
    left = [part for part in parts if part.name not in done]
    progress(len(done), len(parts))
    for outcome in ENGINES[engine](work, left):
        if isinstance(outcome, Failure):
            failed[outcome.part.file] = outcome.why
        else:
            done[outcome.part.name] = outcome
        progress(len(done), len(parts))
    return folder.finish(arguments, done.values(), failed)


def _refuse_columns(query: Query, jobs: Sequence[str]) -> None:
    """Refuses unknown columns, before anything is written."""
    extra = () if query.clusters is None else query.clusters.extra
    own = (name for name in jobs if name not in query.fields)
    query.refuse_unknown_names(tuple(dict.fromkeys(("job", *own, "cluster", *extra, *USUAL))))


def _refuse_changed(
    folder: Folder, files: Files, parts: Sequence[Part], failed: dict[str, str], done: dict[str, Receipt]
) -> None:
    """Refuses plans of other jobs than today's."""
    now = {part.name: part for part in parts}
    changed = []
    for name, receipt in done.items():
        part = now.get(name)
        if part is None:
            file = receipt.part.file
            changed.append(f"{file} {'cannot be read' if file in failed else 'is gone'}")
            continue
        is_newer = part.modified != receipt.part.modified
        if not part.same_as(receipt.part) or (is_newer and part.digest(files.fs) != receipt.digest):
            changed.append(f"{part.file} has changed since it was planned")
    if changed:
        raise other_plans(f"of other jobs: {few(changed, 5)}", folder.base)


# What makes a run the same run


def _arguments(query: Query) -> dict[str, Any]:
    """Returns the arguments behind the result, beside the jobs; large ones as digests, with a few words for people."""
    found = {"isobatch": _core.__version__, **query.settings, "columns": query.columns}
    found |= {"select": query.select, "top": query.top, "clusters": None}
    if query.decimal is not None:
        found["decimal"] = query.decimal
    if (clusters := query.clusters) is not None:
        words = counted(clusters.rows, "cluster")
        found["clusters"] = {"digest": _digest_of(*_contents(clusters)), "words": words}
    words = few(printable(str(it.gpu), 60) for it in query.profiles) or "none"
    digest = _digest_of(*map(msgspec.json.encode, query.profiles))
    return found | {"profile": {"digest": digest, "words": words}}


def _digest_of(*values: Any) -> str:
    """Returns a digest of values, by how Python prints them."""
    digest = new_digest()
    for value in values:
        digest.update(repr(value).encode())
    return str(digest.hexdigest())


def _contents(table: InputTable) -> Iterator[Any]:
    """Gives all that a table holds."""
    yield table.arrow
    for name, data in table.fields:
        yield name, (data[0].tobytes(), data[1]) if isinstance(data, tuple) else data.tobytes()
    for name, column in {**table.extra, table.kind: table.row_ids}.items():
        yield name, column.to_pylist() if table.arrow else column.tolist()


# Engines


def in_this_process(work: Work, parts: Sequence[Part]) -> Iterator[Receipt | Failure]:
    """Plans the parts in this process, a thread for each core, and gives their outcomes as they come.

    Raises:
        OSError: the output cannot be written.
    """
    threads = len(os.sched_getaffinity(0))
    groups = group_parts(parts, work.query.rows_per_job, BLOCK_ROWS, threads)
    pool = ThreadPoolExecutor(threads)
    stopped = threading.Event()
    flying: set[Future[list[Receipt | Failure]]] = set()
    waiting = iter(groups)
    try:
        while True:
            # Few, as each takes a kilobyte while it waits, and there may be 100,000; enough that no thread waits.
            for group in itertools.islice(waiting, 2 * threads - len(flying)):
                flying.add(pool.submit(plan_parts, work, group, stopped.is_set))
            if not flying:
                return
            done, flying = wait(flying, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def on_ray(work: Work, parts: Sequence[Part]) -> Iterator[Receipt | Failure]:
    """Plans the parts by Ray tasks, sending paths and no rows: on the cluster that is connected, else on one in this machine, and gives their outcomes as they come.
    Every node must see the same files. A part whose worker was lost again and again is a failure.

    Raises:
        OSError: the output cannot be written.
        InputError: Ray is not there.
    """
    ray = connect()
    # A copy without what the core holds, which does not travel.
    shared = ray.put(replace(work, query=replace(work.query)))
    task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_task)
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    flying: dict[Any, Sequence[Part]] = {}
    waiting = iter(group_parts(parts, work.query.rows_per_job, BLOCK_ROWS, workers))
    try:
        while True:
            # Few enough that the driver holds little, enough that no worker waits.
            wanted = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(flying) < wanted and (group := next(waiting, None)) is not None:
                flying[task.remote(shared, group)] = group
            if not flying:
                return
            for done in ray.wait(list(flying), num_returns=1)[0]:
                yield from _outcomes(ray, done, flying.pop(done))
    finally:
        for task_ref in flying:
            ray.cancel(task_ref)


def connect(address: str | None = None) -> Any:
    """The module of Ray, connected: to the cluster at the address, else to the one that is connected already, else to a new one on
    this machine.

    Raises:
        InputError: Ray is not there, or no cluster at the address.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("needs ray: pip install 'isobatch[ray]'", field="engine") from None
    if address is not None or not ray.is_initialized():
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, logging_level="WARNING")
        except (OSError, ValueError) as error:
            raise InputError(f"no Ray cluster at {address}: {error}", field="address") from None
    return ray


def _knock(address: str | None) -> None:
    """Ray itself would try for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _outcomes(ray: Any, done: Any, parts: Sequence[Part]) -> list[Receipt | Failure]:
    try:
        outcomes: list[Receipt | Failure] = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, OSError) else error) from None
    except ray.exceptions.RayError as error:
        why = f"its worker was lost {MAX_RETRIES + 1} times: {error}"
        return [Failure(part, f"{part.file}: {why}") for part in parts]
    return outcomes


def _task(work: Work, parts: Sequence[Part]) -> list[Receipt | Failure]:
    # Ray gives a task one core.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    return plan_parts(work, parts)


ENGINES: dict[str, Callable[[Work, Sequence[Part]], Iterator[Receipt | Failure]]] = {
    "local": in_this_process,
    "ray": on_ray,
}
