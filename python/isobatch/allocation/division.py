"""The steps from the values of every count of every job to a division that has its place on nodes."""

from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.allocation.jobs import Jobs, Planner
from isobatch.allocation.nodes import Held, Pool
from isobatch.allocation.objectives import Values
from isobatch.allocation.placement import Want, place

_STEPS_DOWN = 32
"""How often jobs without a place take fewer GPUs before they wait."""

_TIE = 1e-9
"""By how much of its value a job rather stays than changes, where nothing says what a restart costs."""


class Division:
    """A question, and the steps to its answer.

    Attributes:
        choice: the choice of each job, -1 where it waits, or is pinned on what no plan has.
        nodes: the GPUs of each job that runs, by its row.
        value, bound: of the sum that the objective makes.
        prices: of a GPU of each kind.
    """

    def __init__(
        self, jobs: Jobs, pool: Pool, planner: Planner, held: dict[int, Held], objective: str, p: float
    ) -> None:
        self.jobs, self.pool, self.held, self.objective = jobs, pool, held, objective
        shape = np.full((2, jobs.rows), -1)
        shape[:, list(held)] = pool.shapes(list(held.values()))
        self.choices = planner.choices(shape)
        holders = np.zeros(jobs.rows, bool)
        holders[list(held)] = True
        self.values = Values(objective, p, jobs, pool, self.choices, holders)
        self.pinned = jobs.pinned & holders
        self.open = np.isfinite(self.values.value) & ~self.pinned[self.choices.job]
        self.waiting = self._waiting()
        self._divide()

    @cached_property
    def room(self) -> NDArray[np.int64]:
        """GPUs of each kind that are not pinned."""
        room = np.array([kind.total for kind in self.pool.kinds], np.int64)
        for row in np.flatnonzero(self.pinned).tolist():
            for node, held in self.held[row].items():
                room[self.pool.kind_of[node]] -= held
        return room

    @cached_property
    def idle(self) -> NDArray[np.int64]:
        """GPUs of each kind that nobody has."""
        its = self.choice[(self.choice >= 0) & ~self.pinned]
        return self.room - np.bincount(self.choices.kind[its], self.choices.gpus[its], len(self.room)).astype(
            np.int64
        )

    def _divide(self) -> None:
        choice, total, bound, prices, exact = self._divided(self.open)
        found = self._settled(choice)
        if found[2]:
            # Counts that halve from a node downwards leave no pieces.
            found = max(
                found, self._settled(self._divided(self.open & self._halves())[0]), key=lambda it: it[1]
            )
        self.choice, value, _, self.nodes = found
        for row in np.flatnonzero(self.pinned).tolist():
            mine = np.flatnonzero(self.choices.job == row)
            self.choice[row] = mine[0] if len(mine) else -1
            self.nodes[row] = self.held[row]
        best = total if exact else bound
        # The tie's own share is not in the value.
        self.value = value
        self.bound = value if value >= best - 2 * _TIE * abs(best) else best
        self.prices = prices

    def _divided(self, among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], float, float, list[float], bool]:
        """Divides by these choices: the choice of each job, −1 where it waits, and what the core says of the whole."""
        at = np.flatnonzero(among)
        them, value = self.choices, self.values.value[at]
        value = value + np.where(them.held[at], _TIE * np.abs(value), 0.0)
        offsets = np.searchsorted(them.job[at], np.arange(self.jobs.rows + 1)).astype(np.uint64)
        choice, total, bound, prices, exact = _core.divide_pool(
            offsets,
            them.kind[at],
            them.gpus[at].astype(np.uint64),
            value,
            self.waiting,
            self.room.astype(np.uint64),
        )
        return np.where(choice >= 0, at[choice] if len(at) else -1, -1), total, bound, prices, exact

    def _waiting(self) -> NDArray[np.float64]:
        """The value of each job without a choice of its own: of those that cannot run nothing, of the pinned what they have."""
        mine = np.flatnonzero(~np.isnan(self.values.value))
        job = self.choices.job[mine]
        found = np.zeros(self.jobs.rows)
        found[job] = self.values.wait[job]
        mine = mine[self.pinned[job]]
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
            wants, staying = self._wants(choice)
            nodes, left = place(self.pool, wants, staying)
            if not left:
                break
            short = True
            for kind, want in left:
                choice[want.job] = -1 if step + 1 >= _STEPS_DOWN else self._fewer(kind, want)
        total, rows = self.waiting.copy(), np.flatnonzero(choice >= 0)
        total[rows] = self.values.value[choice[rows]]
        moved = [
            row
            for row, mine in chain(*(of_kind.items() for of_kind in staying))
            if nodes.get(row) is not mine and nodes.get(row, mine) != mine
        ]
        total[moved] = self.values.moved(choice[moved])
        return choice, float(np.nan_to_num(total, nan=-np.inf).sum()), short, nodes

    def _fewer(self, kind: int, want: Want) -> int:
        """The best choice of a job on fewer GPUs of the kind."""
        mine = np.flatnonzero((self.choices.job == want.job) & self.open)
        mine = mine[(self.choices.kind[mine] == kind) & (self.choices.gpus[mine] < want.gpus)]
        value = self.values.value[mine]
        return int(mine[np.argmax(value)]) if len(mine) and value.max() > self.values.wait[want.job] else -1

    def _wants(self, choice: NDArray[np.int64]) -> tuple[list[list[Want]], list[dict[int, Held]]]:
        """Of each kind, what jobs want of it, and what those hold whose count stays."""
        wants: list[list[Want]] = [[] for _ in self.pool.kinds]
        rows = np.flatnonzero(choice >= 0)
        its, held = choice[rows], self.held
        kind, gpus, stays = self.choices.kind[its], self.choices.gpus[its], self.choices.held[its]
        of_kind = [rows[stays & (kind == at)].tolist() for at in range(len(wants))]
        staying = [{row: held[row] for row in mine} for mine in of_kind]
        for row, at, count in zip(*(column[~stays].tolist() for column in (rows, kind, gpus)), strict=True):
            wants[at].append(Want(row, count, held.get(row, {})))
        for row in np.flatnonzero(self.pinned).tolist():
            parts: dict[int, Held] = {}
            for node, count in self.held[row].items():
                parts.setdefault(self.pool.kind_of[node], {})[node] = count
            for at, mine in parts.items():
                wants[at].append(Want(row, sum(mine.values()), mine, True))
        return wants, staying
