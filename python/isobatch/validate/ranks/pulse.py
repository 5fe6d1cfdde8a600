"""Notices a process of a validation that is gone, hangs or has failed, by name."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from isobatch.words import few

BEAT_SECONDS = 0.5
LOST_SECONDS = 20.0  # without a sign of life: on a link that is full, they come late
SUSPECT_SECONDS = 5.0  # likewise, once torchrun has ended the run
GRACE_SECONDS = 5.0  # between a phase's limit and the end of the process


class Pulse:
    """Signs of life in the store, and rank 0's watch over them.

    Each rank counts up a key of its own. Rank 0 notices a count that no longer moves, an error that a rank has left, or a phase
    over its limit, calls `on_loss` with what it knows, and ends the process; the other ranks end when rank 0 says so. A
    collective that waits for a lost rank would else hold everybody until its time-out, without a name.

    Args:
        rank, world_size: of the ranks that are watched.
        limit: the time limit of a phase.
        connect: makes another connection to the store, for another thread.
        key: what begins this run's keys in the store.
    """

    def __init__(
        self, rank: int, world_size: int, limit: timedelta, connect: Callable[[], Store], key: str
    ) -> None:
        self._rank, self._world_size, self._key = rank, world_size, key
        self._limit_seconds, self._connect = limit.total_seconds(), connect
        self._stop = threading.Event()
        self._deadline = float("inf")
        self._phase, self._granted = "start", self._limit_seconds
        self._patience = LOST_SECONDS
        self.hosts: list[str] = []
        self.phase_seconds: dict[str, float] = {}
        self.on_loss: Callable[[str], None] = print
        self._store = connect()
        self._thread = threading.Thread(target=self._beat, name="isobatch-pulse", daemon=True)
        self._thread.start()
        self._limiter = threading.Thread(target=self._limit, name="isobatch-limit", daemon=True)
        self._limiter.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Limits the time of a part of the run."""
        begun = time.monotonic()
        self._phase, self._granted = name, self._limit_seconds
        self._deadline = begun + self._limit_seconds + GRACE_SECONDS
        yield
        self.phase_seconds[name] = round(time.monotonic() - begun, 3)
        self._deadline = float("inf")

    def grant(self, seconds: float) -> None:
        """Gives more time to this phase: its work is known to take that long."""
        self._granted += seconds
        self._deadline += seconds

    def fail(self, text: str) -> None:
        """Tells rank 0 this rank's error, and waits for the end."""
        store = self._connect()
        store.set(f"{self._key}/error/{self._rank}", text)
        store.add(f"{self._key}/errors", 1)
        self.linger()

    def linger(self) -> None:
        """Goes on giving signs of life until rank 0 has ended the run."""
        self._patience = SUSPECT_SECONDS
        time.sleep(SUSPECT_SECONDS + 2 * GRACE_SECONDS)

    def stop(self) -> None:
        """Ends this rank's signs of life; rank 0's watch must have ended before, or a clean exit looks like a lost rank."""
        self._stop.set()
        self._thread.join()
        self._limiter.join()

    def who(self, rank: int) -> str:
        """Names a rank by number and host."""
        return f"rank {rank} (host {self.hosts[rank]})" if self.hosts else f"rank {rank}"

    def named(self, ranks: Iterable[int]) -> str:
        """Names ranks by number and host, the first ones where they are many."""
        return few([self.who(rank) for rank in ranks])

    def _beat(self) -> None:
        rank = self._rank
        counts, moved = [b""] * self._world_size, [time.monotonic()] * self._world_size
        try:
            if rank == 0:
                for key in self._keys("beat"):
                    self._store.add(key, 0)  # what is read together must be there
            while not self._stop.wait(BEAT_SECONDS):
                self._store.add(f"{self._key}/beat/{rank}", 1)
                if rank:
                    if self._store.check([f"{self._key}/end"]):
                        os._exit(1)
                    continue
                now = time.monotonic()
                for other, count in enumerate(self._store.multi_get(self._keys("beat"))):
                    if count != counts[other]:
                        counts[other], moved[other] = count, now
                lost = [r for r, at in enumerate(moved) if r and now - at > self._patience]
                failed: list[int] = []
                if self._store.add(f"{self._key}/errors", 0):
                    failed = [r for r, key in enumerate(self._keys("error")) if self._store.check([key])]
                if failed or lost:
                    self._end(self._account(failed, lost))
        except (dist.DistError, RuntimeError):
            # The store is gone: with it rank 0's host, or the way to it. The main thread's collective says so too.
            # Or rank 0 has left because all is done, and this rank is about to.
            if rank and not self._stop.wait(GRACE_SECONDS):
                print(f"isobatch: {self.who(rank)} lost rank 0 in phase {self._phase!r}", flush=True)
                os._exit(1)

    def _keys(self, kind: str) -> list[str]:
        return [f"{self._key}/{kind}/{rank}" for rank in range(self._world_size)]

    def _account(self, failed: list[int], lost: list[int]) -> str:
        reports = [
            f"{self.who(r)} failed: {self._store.get(f'{self._key}/error/{r}').decode(errors='replace')}"
            for r in failed
        ]
        # Who only reports that a connection broke is a witness, not the cause.
        own = [text for text in reports if not _is_witness(text)]
        gone = [
            f"{self.who(r)} gave no sign of life for {self._patience:g} s: dead, or cut off" for r in lost
        ]
        if reports and not own and not gone:
            time.sleep(SUSPECT_SECONDS)
            before = self._store.multi_get(self._keys("beat"))
            time.sleep(3 * BEAT_SECONDS)
            after = self._store.multi_get(self._keys("beat"))
            gone = [
                f"{self.who(r)} is dead or cut off"
                for r in range(1, self._world_size)
                if before[r] == after[r]
            ]
        return "; ".join(dict.fromkeys(own + gone or reports))

    def _end(self, text: str) -> None:
        try:
            self.on_loss(f"in phase {self._phase!r}: {text}")
            self._store.set(f"{self._key}/end", "")
            time.sleep(2 * BEAT_SECONDS)
        finally:
            os._exit(1)

    def _limit(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if time.monotonic() > self._deadline:
                text = f"{self.who(self._rank)} is over the phase's limit of {self._granted:.3g} s"
                if self._rank == 0:
                    self._end(text)
                print(f"isobatch: {text}: {self._phase}", flush=True)
                os._exit(1)


def _is_witness(text: str) -> bool:
    return any(
        sign in text for sign in ("Connection closed", "Connection reset", "Timed out", "monitoredBarrier")
    )
