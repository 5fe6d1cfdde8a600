"""What all ranks must know of each other: at the start that they plan the same, and at each step whether to stop and what they count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from isobatch.errors import InputError


class Agreed(NamedTuple):
    """What the ranks agreed on: whether somebody was asked to stop, and the sums of their counts and of their steps' µs."""

    stopping: bool
    total: float
    micros: float


class Pending:
    """An agreement under way. `result` waits for it; it is the same each time."""

    def __init__(self, stopping: bool, count: float, micros: int, group: Any) -> None:
        # In float64 sums of whole numbers are exact up to 2^53, so that they are the same on all ranks.
        self._values = torch.tensor([stopping, count, micros], dtype=torch.float64)
        # The group's own method: dist.all_reduce takes half as long again to begin.
        self._work = None if group is None else group.allreduce([self._values])
        self._agreed = Agreed(stopping, count, micros)

    def result(self) -> Agreed:
        if self._work is not None:
            self._work.wait()
            self._work = None
            stopping, count, micros = self._values.tolist()
            self._agreed = Agreed(stopping > 0, count, micros)
        return self._agreed


class Ranks:
    """The run's own group of all its processes. It is gloo's, so that an NCCL job never waits for its device."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None

    @property
    def connected(self) -> bool:
        """Whether the processes can talk: one alone can."""
        return self.size == 1 or (dist.is_available() and dist.is_initialized())

    def _own(self) -> Any:
        if self.size > 1 and self._group is None:
            if not self.connected:
                raise InputError(
                    f"the run has {self.size} processes and no process group: call torch.distributed.init_process_group first"
                )
            self._group = dist.new_group(backend="gloo")
        return self._group

    def agree(self, facts: Mapping[str, Any] | InputError) -> None:
        """Compares what the ranks found out, or the error that each met; all of them leave, or all raise.

        Raises:
            InputError: a rank met an error, or two ranks differ; the message has the first thing that does.
        """
        group = self._own()
        every: list[Any] = [None] * self.size
        if group is None:
            every = [facts]
        else:
            dist.all_gather_object(every, facts, group=group)
        if isinstance(facts, InputError):
            raise facts
        for rank, found in enumerate(every):
            if isinstance(found, InputError):
                raise InputError(f"rank {rank} stopped: {found}")
            for name, value in every[0].items():
                if found[name] != value:
                    raise InputError(
                        f"the ranks differ in {name}: {value} on rank 0, {found[name]} on rank {rank}; start all of them with the "
                        "same recipe, settings and checkpoint"
                    )

    def begin(self, stopping: bool, count: float, micros: int) -> Pending:
        """Begins an agreement, on all ranks; NaN as the count says that this rank has none."""
        return Pending(stopping, count, micros, self._own())


class Agreements:
    """The agreements of a run's steps: in each step where the ranks count tokens, else as often as stopping needs it.

    Beginning and waiting take 0.1 to 0.2 ms between two ranks, and wake a thread: of a step of 6 ms that is 3 %. So quick steps
    agree only every `SECONDS`, by the mean of the ranks' own clocks, which they agree on too; at least every `MOST` steps, since
    the next ones may be slow. From 50 ms on, and on one process, every step agrees.
    """

    SECONDS, MOST = 0.05, 10

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pending: Pending | None = None
        self._begun, self._passed = 0.0, 0

    @property
    def stopping(self) -> bool:
        """What the ranks agreed on last; the same on all of them, and all through a step."""
        return self._pending is not None and self._pending.result().stopping

    @property
    def total(self) -> float:
        """The sum of the counts that the last agreement had."""
        return 0.0 if self._pending is None else self._pending.result().total

    def begin_step(self, asked: bool, count: float | None = None) -> None:
        """A step begins, on all ranks: they agree on whether to stop after it, if it is time, and on counts where there are some."""
        self._passed += 1
        if count is None and self._passed < self._every:
            return
        stopping = asked or self.stopping
        now = monotonic()
        # How long steps take is not known yet at first: as if they were slow.
        seconds = (now - self._begun) / self._passed if self._pending is not None else 1.0
        self._begun, self._passed = now, 0
        self._pending = self._ranks.begin(stopping, count or 0.0, int(seconds * 1e6))

    @property
    def _every(self) -> int:
        """How many steps an agreement holds for: by what the last one knows, so that it is the same on all ranks."""
        if self._pending is None or self._ranks.size == 1:
            return 1
        micros = self._pending.result().micros / self._ranks.size
        return max(1, min(self.MOST, int(self.SECONDS * 1e6 / max(micros, 1.0))))

    def end(self) -> None:
        """Nothing is left under way."""
        if self._pending is not None:
            self._pending.result()


def is_count(value: float) -> bool:
    """Whether a count of tokens can be one."""
    return math.isfinite(value) and value >= 0
