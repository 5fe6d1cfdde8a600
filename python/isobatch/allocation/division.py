"""The steps from the values of every count of every job to a division that has its place on nodes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.allocation.jobs import Choices, Jobs
from isobatch.allocation.nodes import Held, Pool
from isobatch.allocation.objectives import values_of
from isobatch.allocation.placement import Want, place

_STEPS_DOWN = 32
"""How often jobs without a place take fewer GPUs before they wait."""

_TIE = 1e-9
"""By how much of its value a job rather stays than changes, where nothing says what a restart costs."""


class Speeds(Protocol):
    """What knows how fast each job is on every count: the `Planner`, or somebody else's measurements."""

    def choices(self, held: dict[int, tuple[int, int]]) -> Choices:
        """All counts of all jobs; `held` is the kind and GPUs that each has now."""


class Division:
    """A question, and the steps to its answer.

    Attributes:
        choice: the choice of each job, -1 where it waits or is pinned.
        nodes: the GPUs of each job that runs, by its row.
        value, bound: of the sum that the objective makes.
        prices: of a GPU of each kind.
    """

    def __init__(
        self, jobs: Jobs, pool: Pool, rates: Speeds, held: dict[int, Held], objective: str, p: float
    ) -> None:
        self.jobs, self.pool, self.held, self.objective = jobs, pool, held, objective
        self.shape = {row: shape for row, mine in held.items() if (shape := pool.shape(mine)) is not None}
        self.choices = rates.choices(self.shape)
        holders = np.zeros(jobs.rows, bool)
        holders[list(held)] = True
        nowhere = np.zeros(len(self.choices.job), bool)
        self.values, self.moved = (
            values_of(objective, p, jobs, pool, self.choices, holders, stays)
            for stays in (self.choices.held, nowhere)
        )
        self.pinned = np.array(jobs.pinned, bool) & holders
        self.open = np.isfinite(self.values.value) & ~self.pinned[self.choices.job]
        self._divide()

    @property
    def counted(self) -> NDArray[np.int64]:
        """Rows of the jobs that can run: the objective is theirs."""
        known = ~np.isnan(self.values.value)
        return np.unique(self.choices.job[known])

    def _divide(self) -> None:
        choice, total, bound, prices, exact = self._divided(self.open)
        found = self._settled(choice)
        if found[2]:
            # Counts that halve from a node downwards leave no pieces.
            found = max(
                found, self._settled(self._divided(self.open & self._halves())[0]), key=lambda it: it[1]
            )
        self.choice, value, _, self.nodes = found
        best = total if exact else bound
        # The tie's own share is not in the value.
        self.value = value
        self.bound = value if value >= best - 2 * _TIE * abs(best) else best
        self.prices = prices

    def _divided(self, among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], float, float, list[float], bool]:
        """Divides by these choices: the choice of each job, −1 where it waits, and what the core says of the whole."""
        at = np.flatnonzero(among)
        part, value = self.choices.only(at), self.values.value[at]
        value = value + np.where(part.held, _TIE * np.abs(value), 0.0)
        offsets = np.searchsorted(part.job, np.arange(self.jobs.rows + 1)).astype(np.uint64)
        room = np.array([kind.total for kind in self.pool.kinds], np.int64)
        for row in np.flatnonzero(self.pinned).tolist():
            for node, gpus in self.held[row].items():
                room[self.pool.kind_of[node]] -= gpus
        choice, total, bound, prices, exact = _core.divide_pool(
            offsets, part.kind, part.gpus.astype(np.uint64), value, self._waiting(), room.astype(np.uint64)
        )
        return np.where(choice >= 0, at[choice] if len(at) else -1, -1), total, bound, prices, exact

    def _waiting(self) -> NDArray[np.float64]:
        """The value of each job without a choice of its own: of those that cannot run nothing, of the pinned what they have."""
        found = np.zeros(self.jobs.rows)
        found[self.counted] = self.values.wait[self.counted]
        mine = np.flatnonzero(self.pinned[self.choices.job] & ~np.isnan(self.values.value))
        found[self.choices.job[mine]] = self.values.value[mine]
        return found

    def _halves(self) -> NDArray[np.bool_]:
        sizes = np.array([kind.gpus for kind in self.pool.kinds], np.int64)[self.choices.kind]
        legal = self.choices.gpus >= sizes
        for _ in range(int(sizes.max(initial=1)).bit_length()):
            legal |= self.choices.gpus == sizes
            sizes = np.where(sizes % 2 == 0, sizes // 2, 1)
        return legal

    def _settled(self, choice: NDArray[np.int64]) -> tuple[NDArray[np.int64], float, bool, dict[int, Held]]:
        """Places a division; jobs without a place take fewer GPUs, or wait. Returns choices, value, whether some had none."""
        choice, short = choice.copy(), False
        for step in range(_STEPS_DOWN + 1):
            nodes, left = place(self.pool, self._wants(choice))
            if not left:
                break
            short = True
            for want in left:
                choice[want.job] = -1 if step + 1 >= _STEPS_DOWN else self._fewer(want)
        total = self._waiting()
        for row in np.flatnonzero(choice >= 0).tolist():
            stays = self.choices.held[choice[row]] and nodes[row] == self.held[row]
            total[row] = (self.values if stays else self.moved).value[choice[row]]
        return choice, float(np.nan_to_num(total, nan=-np.inf).sum()), short, nodes

    def _fewer(self, want: Want) -> int:
        """The best choice of a job on fewer GPUs of the kind."""
        mine = np.flatnonzero((self.choices.job == want.job) & self.open)
        mine = mine[(self.choices.kind[mine] == want.kind) & (self.choices.gpus[mine] < want.gpus)]
        value = self.values.value[mine]
        return int(mine[np.argmax(value)]) if len(mine) and value.max() > self.values.wait[want.job] else -1

    def _wants(self, choice: NDArray[np.int64]) -> list[Want]:
        wants = [
            Want(
                row,
                int(self.choices.kind[at]),
                int(self.choices.gpus[at]),
                self.held.get(row, {}),
                bool(self.choices.held[at]),
            )
            for row, at in enumerate(choice.tolist())
            if at >= 0
        ]
        for row in np.flatnonzero(self.pinned).tolist():
            parts: dict[int, Held] = {}
            for node, gpus in self.held[row].items():
                parts.setdefault(self.pool.kind_of[node], {})[node] = gpus
            wants += [Want(row, kind, sum(mine.values()), mine, True, True) for kind, mine in parts.items()]
        return wants
