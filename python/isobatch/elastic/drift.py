"""Compares a few sums of the weights among a crew's ranks now and then: they must be the same."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from isobatch.elastic.training import local_part
from isobatch.errors import InputError

EACH = 100
"""Steps from one comparison to the next; the first two follow a crew's first and tenth step."""

_LARGEST = 1e-5
"""The largest distance that rounding on different kinds of GPUs may explain, over the norm of the weights.
Ranks that do not synchronize are further apart after a single step.
"""


class Drift:
    """Compares the weights of replicas, equal as long as the training synchronizes them."""

    def __init__(self, names: Sequence[str], shards: int, group: Any) -> None:
        self._names, self._shards, self._group = names, shards, group
        self._steps = 0
        self._pending: tuple[Any, torch.Tensor, int] | None = None

    def step(self, step: int, parameters: Sequence[torch.Tensor]) -> None:
        """Begins a step: starts a comparison if one is due, and reads its result one step later."""
        self.end()
        if self._steps in (1, 10) or (self._steps and self._steps % EACH == 0):
            self._begin(step, parameters)
        self._steps += 1

    def finish(self, step: int, parameters: Sequence[torch.Tensor]) -> None:
        """Compares the weights after the last step."""
        self.end()
        self._begin(step, parameters)
        self.end()

    def _begin(self, step: int, parameters: Sequence[torch.Tensor]) -> None:
        sums = torch.tensor(_sums(parameters), dtype=torch.float64)
        table = torch.empty(len(self._names) * 2, dtype=torch.float64)
        work = dist.all_gather_into_tensor(table, sums, group=self._group, async_op=True)
        self._pending = work, table, step

    def end(self) -> None:
        """Waits for the comparison under way."""
        if self._pending is None:
            return
        (work, table, step), self._pending = self._pending, None
        work.wait()
        for place in range(self._shards):
            names = self._names[place :: self._shards]
            distances = _distances(table.view(-1, 2)[place :: self._shards].tolist())
            if not all(distance <= _LARGEST for distance in distances):
                raise InputError(_difference(names, distances, step))


def _sums(parameters: Sequence[torch.Tensor]) -> list[float]:
    """Returns the sum of all weights and their norm."""
    if not parameters:
        return [0.0, 0.0]
    local = [local_part(parameter) for parameter in parameters]
    sums = torch.stack([tensor.sum(dtype=torch.float64) for tensor in local]).sum()
    squares = torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float64) ** 2 for tensor in local])
    return torch.stack([sums, squares.sum().sqrt()]).tolist()


def _distances(rows: list[list[float]]) -> list[float]:
    """Returns each rank's distance to the median rank, over the norm of the weights."""
    if all(str(row) == str(rows[0]) for row in rows):  # NaN equals NaN.
        return [0.0 for _ in rows]
    middle = [sorted(column)[(len(column) - 1) // 2] for column in zip(*rows, strict=True)]
    scale = max(middle[1], 1e-300)
    return [
        max(abs(value - centre) for value, centre in zip(row, middle, strict=True)) / scale for row in rows
    ]


def _difference(names: Sequence[str], distances: list[float], step: int) -> str:
    largest = max(distances, key=lambda distance: math.inf if math.isnan(distance) else distance)
    apart = [name for name, distance in zip(names, distances, strict=True) if not distance <= _LARGEST]
    who = f"ranks {names[0]} and {names[1]}" if len(names) == 2 else f"rank {', '.join(apart)} and the others"
    return (
        f"{who} have different weights before step {step:,} ({largest:.1e} of their norm apart): the ranks "
        "must train the network that crew.wrap returns, with the same optimizer and the same settings"
    )
