"""The same call for many files, in threads: mostly it waits for a disk or a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
_AT_A_TIME = 64
"""Items of a task, at most: handing one over costs as much as opening a file."""

A = TypeVar("A")
B = TypeVar("B")


def in_threads(call: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """The results, in the order of the items, in memory that does not grow with them.

    >>> list(in_threads(str, range(3)))
    ['0', '1', '2']
    """
    step = max(1, min(_AT_A_TIME, len(items) // (4 * THREADS)))
    tasks = [range(start, min(start + step, len(items))) for start in range(0, len(items), step)]
    window = 8 * THREADS

    def several(task: range) -> list[B]:
        return [call(items[at]) for at in task]

    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, len(tasks), window):
            for results in pool.map(several, tasks[first : first + window]):
                yield from results
