"""Windows of time in which all ranks do the same work at once, so that they can be compared."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from isobatch.validate.ranks.group import Group

FIRST, MOST = 5, 25  # windows, and where a rank looks slow
LEAST = 3  # repetitions in a window, unless fewer take LEAST_SECONDS
LEAST_SECONDS = 0.5
WORKING = 0.1  # of the busiest thread's time on a processor: one that ran less did not do the work


class Window(NamedTuple):
    """One window of one rank: seconds of a repetition on average, and the share of them in which the rank was ready to run
    and another process had the processor."""

    seconds: float
    waited: float


def window(group: Group, work: Callable[[], object], seconds: float) -> Window:
    """This rank's next window, begun together with the other ranks; inside of it none waits for another.

    A mean, not a median: what stops a rank for most of a time, and lets it run at full speed for the rest, is slow too.
    """
    group.barrier()
    if group.device.type == "cuda":
        return _gpu_window(group, work, seconds)
    before, begun, count = _threads(), time.perf_counter(), 0
    while True:
        work()
        count += 1
        took = time.perf_counter() - begun
        if took >= seconds and (count >= LEAST or took >= LEAST_SECONDS):
            break
    waited = waited_seconds(before, _threads())
    return Window(took / count, min(0.95, waited / took))


def _gpu_window(group: Group, work: Callable[[], object], seconds: float) -> Window:
    """By the GPU's own clock: what the host does between two launches is not in it."""
    begun, took = time.perf_counter(), list[float]()
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        group.sync()
        took.append(float(start.elapsed_time(end)) / 1e3)
        passed = time.perf_counter() - begun
        if passed >= seconds and (len(took) >= LEAST or passed >= LEAST_SECONDS):
            return Window(sum(took) / len(took), 0.0)


Threads = dict[str, tuple[int, int]]
"""By thread: nanoseconds on a processor, and ready to run without one."""


def _threads() -> Threads:
    """This process's threads as the system counts them; none where it does not."""
    found = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            ran, waited, _ = file.read_text().split()
            found[file.parent.name] = int(ran), int(waited)
    return found


def waited_seconds(before: Threads, after: Threads) -> float:
    """How long the threads that did the work were ready to run and did not, all together: each waits for the others at the
    end of a piece of work. Threads that hardly ran are left out: gloo's look for messages all the time, and wait each time.

    >>> waited_seconds({"main": (0, 0), "gloo": (0, 0)}, {"main": (10**9, 10**9), "gloo": (10**6, 10**9)})
    1.0
    """
    own = [(ran - before[t][0], waited - before[t][1]) for t, (ran, waited) in after.items() if t in before]
    most = max((ran for ran, _ in own), default=0)
    return sum(waited for ran, waited in own if ran >= WORKING * most) / 1e9
