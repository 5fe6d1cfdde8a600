"""Reading the batches of a run through the deaths of its loader's workers."""

from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data._utils import signal_handling

from isobatch.errors import InputError, first_line
from isobatch.training.dealing import Span
from isobatch.training.workers import RankLoader, end_iteration

_DEATHS = 2
"""How often dead workers are replaced at the same batch."""


class LoaderReader:
    """Reads the batches of a loader. If a worker dies, all are replaced, and read on from the same batch: one
    that was killed may have left a lock of their queue taken."""

    def __init__(self, loader: RankLoader) -> None:
        self._loader, self._batches, self._deaths = loader, iter(loader), 0

    def read(self, span: Span, passed: int) -> Any:
        """Reads the batch after the first `passed` passes of a step."""
        while True:
            try:
                with READING:
                    self._check()
                    batch = next_batch(self._batches, span.number)
            except Exception as error:
                if not (is_death(error) or self._has_dead(error)):
                    raise
                if self._deaths == _DEATHS:
                    raise RuntimeError(
                        f"the loader's workers died {_DEATHS + 1} times at a batch of step {span.number:,}: "
                        f"{first_line(error)}"
                    ) from None
                self._deaths += 1
                self._replace(span, passed)
            else:
                self._deaths = 0
                return batch

    def _check(self) -> None:
        """Raises if a worker died while no batch was read."""
        if READING.noted:
            READING.noted = False
            for worker in self._workers:
                if worker.exitcode:
                    raise RuntimeError(f"{_DEATH} {worker.pid}) ended with {worker.exitcode}")

    @property
    def _workers(self) -> list[Any]:
        return getattr(self._batches, "_workers", [])

    def _has_dead(self, error: Exception) -> bool:
        """Returns whether an error comes of a dead worker: its connections close a moment before its end."""
        patience = float(isinstance(error, (OSError, EOFError)))
        ending = wait([worker.sentinel for worker in self._workers], patience)
        for worker in self._workers:
            if worker.sentinel in ending:
                worker.join()
        return any(worker.exitcode for worker in self._workers)

    def _replace(self, span: Span, passed: int) -> None:
        batches: Any = self._batches
        if getattr(batches, "_worker_pids_set", False):  # Else torch would raise the ends of the others here.
            signal_handling._remove_worker_pids(id(batches))  # type: ignore[attr-defined]
            batches._worker_pids_set = False
        for worker in self._workers:
            worker.kill()
        end_iteration(batches)
        self._loader.end_workers()
        self._loader.order.begins = span, passed
        with torch.random.fork_rng(devices=[]):  # A loader draws its workers' seed.
            self._batches = iter(self._loader)
        self._loader.order.begins = None

    def end(self) -> None:
        """Ends the workers, unless they are kept for the next iteration."""
        if not self._loader.persistent_workers:
            end_iteration(self._batches)


def next_batch(loader: Iterator[Any], step: int) -> Any:
    """Takes the loader's next batch."""
    try:
        return next(loader)
    except StopIteration:
        raise InputError(
            f"the loader ended in step {step}, before the run: make it with run.loader", field="loader"
        ) from None


_DEATH = "DataLoader worker (pid"


def is_death(error: BaseException) -> bool:
    """Returns whether an error is torch's of a dead worker."""
    return isinstance(error, RuntimeError) and str(error).startswith(_DEATH)


class _Reading:
    """Tells whether a loader of ours is being read.

    torch raises a worker's death wherever the training is: in an optimizer's step too, which would stay half
    applied. `calm` keeps it until a batch is read; a loader of the training's own looks every five seconds.
    """

    def __init__(self) -> None:
        self._is_under_way = self.noted = False

    def __enter__(self) -> None:
        self._is_under_way = True

    def __exit__(self, *_: object) -> None:
        self._is_under_way = False

    def calm(self, handler: Any) -> Any:
        """Returns torch's handler of SIGCHLD, silent unless a batch is read."""

        def calmed(number: int, frame: Any) -> None:
            try:
                handler(number, frame)
            except RuntimeError:
                if self._is_under_way:
                    raise
                self.noted = True

        return calmed if callable(handler) else handler


READING = _Reading()
