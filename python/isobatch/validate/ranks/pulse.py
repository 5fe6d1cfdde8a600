"""Notices a lost, hanging or failed process of a validation, and names it."""

import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from isobatch.words import few

BEAT_SECONDS = 0.5
LOST_SECONDS = 20.0  # without a sign of life: on a link that is full, they come late
SUSPECT_SECONDS = 5.0  # the same, once torchrun has ended the run
GRACE_SECONDS = 5.0  # between a phase's limit and the end of the process
DEAD = "dead, or cut off"
OVER = "is over the phase's limit"
WITNESS_SIGNS = "Connection closed", "Connection reset", "Timed out", "closure", OVER
_END = 1 << 30  # an order below it counts how often rank 0 asked all ranks for their progress


class Whereabouts(msgspec.Struct, frozen=True):
    """A rank's progress: its entered collectives, its phase, and its main thread's place in the code."""

    entered: int
    phase: str
    place: str


class Pulse:
    """Signs of life in the store, and rank 0's watch over them.

    Each rank counts up a key of its own. If a count no longer moves, a rank has left an error, or a phase is
    over its limit, rank 0 calls `on_loss` with all it knows and ends the process; the other ranks end when
    rank 0 says so. Otherwise a collective would wait for the lost rank until its time-out, and name nobody.

    If a rank hangs, all others wait for it in a collective that it has not entered. So all are asked how many
    they have entered, and the ones behind are named. If rank 0 itself no longer runs, another rank asks.

    `connect` makes another connection to the store, for another thread; `entered` counts the collectives that
    this rank has entered.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        limit: timedelta,
        connect: Callable[[], Store],
        key: str,
        entered: Callable[[], int],
    ) -> None:
        self._rank, self._world_size, self._key = rank, world_size, key
        self._entered, self._main, self._ending = entered, threading.get_ident(), threading.Lock()
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
        """Ends this rank's signs of life; before rank 0's watch has ended this would look like a loss."""
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
        rank, answered = self._rank, 0
        counts, moved = [b""] * self._world_size, [time.monotonic()] * self._world_size
        try:
            if rank == 0:
                for key in self._keys("beat"):
                    self._store.add(key, 0)  # multi_get needs every key to exist
            while not self._stop.wait(BEAT_SECONDS):
                self._store.add(f"{self._key}/beat/{rank}", 1)
                if rank:
                    order = self._store.add(f"{self._key}/order", 0)
                    if order >= _END:
                        os._exit(1)
                    if order > answered:
                        answered = order
                        self._store.set(f"{self._key}/progress/{rank}", self._own_progress())
                    continue
                now = time.monotonic()
                for peer, count in enumerate(self._store.multi_get(self._keys("beat"))):
                    if count != counts[peer]:
                        counts[peer], moved[peer] = count, now
                lost = [r for r, at in enumerate(moved) if r and now - at > self._patience]
                if lost or self._store.add(f"{self._key}/errors", 0):
                    self._end(self._store, partial(self._account, lost))
        except (dist.DistError, RuntimeError):
            # The store is gone, with rank 0's host or the way to it: the main thread's collective fails too.
            # Or all is done, rank 0 has left, and this rank is about to leave.
            if rank and not self._stop.wait(GRACE_SECONDS):
                print(f"isobatch: {self.who(rank)} lost rank 0 in phase {self._phase!r}", flush=True)
                os._exit(1)

    def _keys(self, kind: str) -> list[str]:
        return [f"{self._key}/{kind}/{rank}" for rank in range(self._world_size)]

    def _account(self, lost: list[int], store: Store) -> str:
        reports = [
            f"{self.who(rank)} failed: {store.get(key).decode(errors='replace')}"
            for rank, key in enumerate(self._keys("error"))
            if store.check([key])
        ]
        # A rank that only reports a broken connection or a time-out is a witness, not the cause.
        own = [text for text in reports if not any(sign in text for sign in WITNESS_SIGNS)]
        gone = [f"{self.who(r)} gave no sign of life for {self._patience:g} s: {DEAD}" for r in lost]
        if own or gone:
            return f"in phase {self._phase!r}: " + "; ".join(own + gone)
        return self._find_behind(store, "; ".join(text for text in reports if OVER not in text))

    def _find_behind(self, store: Store, why: str = "") -> str:
        """Asks all ranks for their progress; names the silent ones, else the ones behind."""
        store.add(f"{self._key}/order", 1)
        progress = {self._rank: msgspec.json.decode(self._own_progress(), type=Whereabouts)}
        until = time.monotonic() + SUSPECT_SECONDS
        while len(progress) < self._world_size and time.monotonic() < until:
            time.sleep(BEAT_SECONDS)
            for rank, key in enumerate(self._keys("progress")):
                if rank not in progress and store.check([key]):
                    progress[rank] = msgspec.json.decode(store.get(key), type=Whereabouts)
        if silent := [rank for rank in range(self._world_size) if rank not in progress]:
            text = f"no longer answers: {DEAD}, stopped, or in a call that keeps Python's lock"
            return f"in phase {self._phase!r}: {self.named(silent)} {text}"
        return judge_progress(progress, self.who, why or f"over the limit of {self._granted:.3g} s")

    def _own_progress(self) -> str:
        return msgspec.json.encode(Whereabouts(self._entered(), self._phase, place_of(self._main))).decode()

    def _end(self, store: Store, account: Callable[[Store], str]) -> None:
        """Reports a loss and ends all ranks, once for all watching threads."""
        if not self._ending.acquire(blocking=False):
            time.sleep(self._limit_seconds)
        try:
            if store.add(f"{self._key}/order", 0) < _END:  # else another has, while this process was stopped
                self.on_loss(account(store))
                store.add(f"{self._key}/order", _END)
                time.sleep(2 * BEAT_SECONDS)
        finally:
            os._exit(1)

    def _limit(self) -> None:
        while time.monotonic() <= self._deadline:
            if self._stop.wait(BEAT_SECONDS):
                return
        store = self._connect()
        if self._rank:
            # Rank 0 asks everybody; where it no longer can, the first of the others does.
            store.set(f"{self._key}/error/{self._rank}", f"{OVER} of {self._granted:.3g} s")
            store.add(f"{self._key}/errors", 1)
            time.sleep(SUSPECT_SECONDS + GRACE_SECONDS)
            if store.add(f"{self._key}/successor", 1) > 1:
                time.sleep(SUSPECT_SECONDS + GRACE_SECONDS)
                os._exit(1)
        self._end(store, self._find_behind)


def judge_progress(progress: dict[int, Whereabouts], who: Callable[[int], str], why: str) -> str:
    """Names the ranks behind the others in their collectives, and their places in the code.

    >>> near, far = Whereabouts(7, "step", "loss (my.py:12)"), Whereabouts(8, "step", "gather (group.py:90)")
    >>> text = judge_progress({0: far, 1: near}, "rank {}".format, "over the limit of 60 s")
    >>> text.partition(": ")[2]
    'the others wait for rank 1, in loss (my.py:12): 7 collectives entered, theirs are 8'
    """
    least, most = (pick(whereabouts.entered for whereabouts in progress.values()) for pick in (min, max))
    behind = [rank for rank, whereabouts in progress.items() if whereabouts.entered == least]
    phase = f"in phase {progress[behind[0]].phase!r}, {why}"
    places = few([f"{who(rank)}, in {progress[rank].place}" for rank in behind])
    if len(progress) == 1:
        return f"{phase}: {places}"
    if least == most:
        return f"{phase}: all ranks have entered {most} collectives, so that none can be named; {places}"
    return f"{phase}: the others wait for {places}: {least} collectives entered, theirs are {most}"


def place_of(thread: int) -> str:
    """Names a thread's place: the user's function (else this package's), and the innermost one."""
    top = sys._current_frames().get(thread)
    if top is None:
        return "a thread that has ended"
    stack = [frame for frame, _ in traceback.walk_stack(top)]
    own = str(Path(__file__).parents[2])
    libraries = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen")
    own_frames = [frame for frame in stack if frame.f_code.co_filename.startswith(own)]
    users = [frame for frame in stack if not frame.f_code.co_filename.startswith((own, *libraries))]
    chosen = next(iter(users or own_frames), stack[0])
    places = [
        f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        for frame in (chosen, stack[0])
    ]
    return " → ".join(dict.fromkeys(places))
