"""The division of a pool: from the value of every count of every job to nodes for each job."""

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
    """A division of a pool over jobs, with its value and bound, and the price of a GPU of each kind.

    `choice` has the choice of each job, -1 if it waits, or is pinned on GPUs that no plan fits; `nodes` has
    the GPUs of each job that runs, by its row.
    """

    def __init__(
        self, jobs: Jobs, pool: Pool, planner: Planner, holdings: dict[int, Held], objective: str, p: float
    ) -> None:
        self.jobs, self.pool, self.held, self.objective = jobs, pool, holdings, objective
        shape = np.full((2, jobs.rows), -1)
        shape[:, list(holdings)] = pool.shapes(list(holdings.values()))
        self.choices = planner.choices(shape)
        holders = np.zeros(jobs.rows, bool)
        holders[list(holdings)] = True
        self.values = Values(objective, p, jobs, pool, self.choices, holders)
        self.pinned = jobs.pinned & holders
        self.open = np.isfinite(self.values.value) & ~self.pinned[self.choices.job]
        self.waiting = self._waiting()
        self._divide()

    @cached_property
    def room(self) -> NDArray[np.int64]:
        """Counts the GPUs of each kind without those of pinned jobs."""
        room = np.array([kind.total for kind in self.pool.kinds], np.int64)
        for row in np.flatnonzero(self.pinned).tolist():
            for node, gpus in self.held[row].items():
                room[self.pool.kind_of[node]] -= gpus
        return room

    @cached_property
    def idle(self) -> NDArray[np.int64]:
        """Counts the idle GPUs of each kind."""
        running = self.choice[(self.choice >= 0) & ~self.pinned]
        used = np.bincount(self.choices.kind[running], self.choices.gpus[running], len(self.room))
        return self.room - used.astype(np.int64)

    def _divide(self) -> None:
        choice, total, bound, prices, exact = self._divided(self.open)
        settled = self._settled(choice)
        if settled[2]:
            # Counts that halve from a node downwards leave no pieces.
            halved = self._settled(self._divided(self.open & self._halves())[0])
            settled = max(settled, halved, key=lambda answer: answer[1])
        self.choice, value, _, self.nodes = settled
        for row in np.flatnonzero(self.pinned).tolist():
            options = np.flatnonzero(self.choices.job == row)
            self.choice[row] = options[0] if len(options) else -1
            self.nodes[row] = self.held[row]
        best = total if exact else bound
        # The tie's own share is not in the value.
        self.value = value
        self.bound = value if value >= best - 2 * _TIE * abs(best) else best
        self.prices = prices

    def _divided(self, among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], float, float, list[float], bool]:
        """Returns the choice of each job, the total and its bound, the prices, and if the total is exact."""
        at = np.flatnonzero(among)
        choices, value = self.choices, self.values.value[at]
        value = value + np.where(choices.is_held[at], _TIE * np.abs(value), 0.0)
        offsets = np.searchsorted(choices.job[at], np.arange(self.jobs.rows + 1)).astype(np.uint64)
        choice, total, bound, prices, exact = _core.divide_pool(
            offsets,
            choices.kind[at],
            choices.gpus[at].astype(np.uint64),
            value,
            self.waiting,
            self.room.astype(np.uint64),
        )
        return np.where(choice >= 0, at[choice] if len(at) else -1, -1), total, bound, prices, exact

    def _waiting(self) -> NDArray[np.float64]:
        """Returns the value of jobs without a choice: 0 if infeasible, the current value if pinned."""
        options = np.flatnonzero(~np.isnan(self.values.value))
        job = self.choices.job[options]
        values = np.zeros(self.jobs.rows)
        values[job] = self.values.wait[job]
        options = options[self.pinned[job]]
        values[self.choices.job[options]] = self.values.value[options]
        return values

    def _halves(self) -> NDArray[np.bool_]:
        sizes = np.array([kind.gpus for kind in self.pool.kinds], np.int64)[self.choices.kind]
        legal = self.choices.gpus >= sizes
        for _ in range(int(sizes.max(initial=1)).bit_length()):
            legal |= self.choices.gpus == sizes
            sizes = np.where(sizes % 2 == 0, sizes // 2, 1)
        return legal

    def _settled(self, choice: NDArray[np.int64]) -> tuple[NDArray[np.int64], float, bool, dict[int, Held]]:
        """Places a division; a job without a place takes fewer GPUs, or waits.

        Returns the choices, their value, whether any job was without a place, and the nodes of each job.
        """
        choice, short = choice.copy(), False
        for step in range(_STEPS_DOWN + 1):
            wants, staying = self._wants(choice)
            nodes, unplaced = place(self.pool, wants, staying)
            if not unplaced:
                break
            short = True
            for kind, want in unplaced:
                choice[want.job] = -1 if step + 1 >= _STEPS_DOWN else self._fewer(kind, want)
        total, rows = self.waiting.copy(), np.flatnonzero(choice >= 0)
        total[rows] = self.values.value[choice[rows]]
        moved = [
            row
            for row, holding in chain(*(of_kind.items() for of_kind in staying))
            if nodes.get(row) is not holding and nodes.get(row, holding) != holding
        ]
        total[moved] = self.values.moved(choice[moved])
        return choice, float(np.nan_to_num(total, nan=-np.inf).sum()), short, nodes

    def _fewer(self, kind: int, want: Want) -> int:
        """Finds the best choice of a job on fewer GPUs of the kind; −1: it waits."""
        options = np.flatnonzero((self.choices.job == want.job) & self.open)
        options = options[(self.choices.kind[options] == kind) & (self.choices.gpus[options] < want.gpus)]
        value = self.values.value[options]
        is_better = len(options) and value.max() > self.values.wait[want.job]
        return int(options[np.argmax(value)]) if is_better else -1

    def _wants(self, choice: NDArray[np.int64]) -> tuple[list[list[Want]], list[dict[int, Held]]]:
        """Returns, for each kind, the wants of jobs and the holdings of unmoved jobs."""
        wants: list[list[Want]] = [[] for _ in self.pool.kinds]
        rows = np.flatnonzero(choice >= 0)
        running, holdings = choice[rows], self.held
        columns = (self.choices.kind, self.choices.gpus, self.choices.is_held)
        kind, gpus, stays = (column[running] for column in columns)
        of_kind = [rows[stays & (kind == at)].tolist() for at in range(len(wants))]
        staying = [{row: holdings[row] for row in part} for part in of_kind]
        for row, at, count in zip(*(column[~stays].tolist() for column in (rows, kind, gpus)), strict=True):
            wants[at].append(Want(row, count, holdings.get(row, {})))
        for row in np.flatnonzero(self.pinned).tolist():
            parts: dict[int, Held] = {}
            for node, count in self.held[row].items():
                parts.setdefault(self.pool.kind_of[node], {})[node] = count
            for at, part in parts.items():
                wants[at].append(Want(row, sum(part.values()), part, True))
        return wants, staying
