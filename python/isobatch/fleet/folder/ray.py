"""Parts of a fleet, planned by Ray tasks: paths travel to them, rows do not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from isobatch.errors import InputError
from isobatch.fleet.folder.manifest import Receipt
from isobatch.fleet.folder.parts import Part
from isobatch.fleet.folder.work import Failure, Work, plan_part

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
    flying: dict[Any, Part] = {}
    waiting = iter(parts)
    try:
        while True:
            # Few enough that the driver holds little, enough that no worker waits.
            wanted = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(flying) < wanted and (part := next(waiting, None)) is not None:
                flying[task.remote(shared, part)] = part
            if not flying:
                return
            for done in ray.wait(list(flying), num_returns=1)[0]:
                yield _outcome(ray, done, flying.pop(done))
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


def _outcome(ray: Any, done: Any, part: Part) -> Receipt | Failure:
    try:
        outcome: Receipt | Failure = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, OSError) else error) from None
    except ray.exceptions.RayError as error:
        return Failure(part, f"{part.file}: its worker was lost {RETRIES + 1} times: {error}")
    return outcome


def _task(work: Work, part: Part) -> Receipt | Failure:
    # Ray gives a task one core.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    return plan_part(work, part)
