"""Parts of a fleet, planned by Ray tasks: paths travel to them, rows do not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from isobatch.errors import InputError
from isobatch.fleet.folder.blocks import BLOCK
from isobatch.fleet.folder.manifest import Receipt
from isobatch.fleet.folder.parts import Part, grouped
from isobatch.fleet.folder.work import Failure, Work, plan_parts

RETRIES = 5
"""Of a part whose worker or node was lost. Planning it again does no harm: its files appear under the same names."""


def run(work: Work, parts: Sequence[Part]) -> Iterator[Receipt | Failure]:
    """Plans the parts on the Ray cluster that is connected, else on one in this machine, and gives their outcomes as they come.
    Every node must see the same files. A part whose worker was lost again and again is a failure.

    Raises:
        OSError: the output cannot be written.
        InputError: Ray is not there.
    """
    ray = connect()
    # A copy without what the core holds, which does not travel.
    shared = ray.put(replace(work, query=replace(work.query)))
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_task)
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    flying: dict[Any, Sequence[Part]] = {}
    waiting = iter(grouped(parts, work.query.rows_per_job, BLOCK, workers))
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
        why = f"its worker was lost {RETRIES + 1} times: {error}"
        return [Failure(part, f"{part.file}: {why}") for part in parts]
    return outcomes


def _task(work: Work, parts: Sequence[Part]) -> list[Receipt | Failure]:
    # Ray gives a task one core.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    return plan_parts(work, parts)
