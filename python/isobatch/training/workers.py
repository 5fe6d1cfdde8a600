"""The workers of a rank's DataLoader: they survive one SIGTERM, and end with their rank."""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

from isobatch.training.forks import FORKS

_FIRST = 1000
"""A priority above all of multiprocessing's own finalizers, so that ours runs first."""
_GRACE = 40
"""Seconds from a SIGTERM to a worker's end: torchrun waits for 30 s until it kills a rank."""


class RankLoader(DataLoader[Any]):
    """A DataLoader with workers ending before its rank.

    Attributes:
        order: its batch sampler or its stream, whose `begins` is where the next iteration begins.
    """

    order: Any

    def _get_iterator(self) -> Any:
        iterator: Any = super()._get_iterator()
        if self.num_workers:
            _end_at_exit(iterator)
            for worker in iterator._workers:
                # SIGKILL, as workers survive a first SIGTERM; Windows ends them at once. A bound method would
                # be a reference cycle.
                if sys.platform != "win32":
                    worker.terminate = partial(os.kill, worker.pid, signal.SIGKILL)
        return iterator

    def end_workers(self) -> None:
        """Ends workers kept from one iteration to the next."""
        iterator, self._iterator = self._iterator, None
        end_iteration(iterator)


_ITERATORS: dict[int, WeakSet[Any]] = {}
"""The iterations with workers, by process: a fork inherits those of its parent."""


def _end_at_exit(iterator: Any) -> None:
    """Ends an iteration's workers at exit, before multiprocessing sends each its first SIGTERM and waits."""
    process = os.getpid()
    if process not in _ITERATORS:
        _ITERATORS[process] = WeakSet()
        atexit.register(_end_workers, process)
        Finalize(
            None, _end_workers, [process], exitpriority=_FIRST
        )  # A child of multiprocessing skips atexit.
    _ITERATORS[process].add(iterator)


def _end_workers(process: int) -> None:
    if process == os.getpid():
        for iterator in [*_ITERATORS[process]]:
            end_iteration(iterator)


def end_iteration(iterator: Any) -> None:
    """Ends an iteration: a GlobalLoader's, which is closed, or a DataLoader's, with its workers."""
    for name in "close", "_shutdown_workers":
        end = getattr(iterator, name, None)
        if end is not None:
            end()


def begin_worker(own: Callable[[int], Any] | None, worker: int) -> None:
    """Begins a DataLoader's worker, before the user's own function.

    torchrun and Slurm send SIGTERM to workers too, and the training would end before it can stop by itself. A
    second SIGTERM, or 40 s, end the worker.
    """
    signal.signal(signal.SIGTERM, _outlive)
    FORKS.tie()  # For those that are not forks of the rank, as a fork server's.
    if own is not None:
        own(worker)


def _outlive(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "win32":
        signal.alarm(_GRACE)
