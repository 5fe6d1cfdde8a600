"""What all ranks must know of each other: at the start that they plan the same, and at each step whether to stop and what they count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from isobatch.errors import InputError


class Agreed(NamedTuple):
    """What the ranks agreed on: whether somebody was asked to stop, and the sum of their counts."""

    stopping: bool
    total: float


class Pending:
    """An agreement under way. `result` waits for it; it is the same each time."""

    def __init__(self, stopping: bool, count: float, group: Any) -> None:
        # In float64 sums of whole numbers are exact up to 2^53.
        self._values = torch.tensor([float(stopping), count], dtype=torch.float64)
        # The group's own method: dist.all_reduce takes half as long again to begin.
        self._work = None if group is None else group.allreduce([self._values])

    def result(self) -> Agreed:
        if self._work is not None:
            self._work.wait()
            self._work = None
        stopping, count = self._values.tolist()
        return Agreed(stopping > 0, count)


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

    def begin(self, stopping: bool, count: float = 0.0) -> Pending:
        """Begins the agreement of a step, on all ranks; NaN as the count says that this rank has none."""
        return Pending(stopping, count, self._own())


def is_count(value: float) -> bool:
    """Whether a count of tokens can be one."""
    return math.isfinite(value) and value >= 0
