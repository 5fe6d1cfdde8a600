"""One call that divides a pool of GPUs over jobs, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.allocation.answer import Change, changes_of, table_of, why_idle
from isobatch.allocation.jobs import Jobs, Planner, Profiles, named, read_jobs
from isobatch.allocation.nodes import Held, Pool, read_held, read_pool
from isobatch.allocation.objectives import values_of
from isobatch.allocation.placement import Want, place
from isobatch.limits import one_of, real
from isobatch.words import counted, few, figure

OBJECTIVES = ("fair", "throughput", "finish", "cost")
"""What a division may make as good as can be."""

_SAID = (
    "job",
    "status",
    "gpus",
    "gpu",
    "why",
    "goodput",
    "speedup",
    "hours_left",
    "micro_batch",
    "accumulation",
    "effective_batch",
    "lr",
)
"""What the JSON has of each row, beside its nodes."""

_STEPS_DOWN = 32
"""How often jobs without a place take fewer GPUs before they wait."""

_TIE = 1e-9
"""By how much of its value a job rather stays than changes, where nothing says what a restart costs."""


@dataclass(frozen=True)
class Allocation:
    """Who gets how many GPUs, on which nodes, and who waits.

    Attributes:
        objective: what it makes as good as can be.
        table: a row a job, as `plan_fleet`'s result: `job`, `status` (runs, waits, stays, moves), `gpus`, `gpu`, `nodes`, `why`,
            `goodput` (samples of the tuned batch's worth a second), `speedup` (over its fair share), `hours_left`, and its plan.
        placement: the GPUs on each node, by the job's id; jobs that wait have none.
        value: of the objective.
        bound: no division has a better value.
        prices: what one GPU more of each kind would add to the sum that the objective makes, at most.
        changes: what to do, in an order in which no node is ever asked for more than it has.
        used, idle: GPUs; `idle_why` says why.
        notes: what the caller should know of `held`.
    """

    objective: str
    table: Any
    placement: dict[str, Held]
    value: float
    bound: float
    prices: dict[str, float]
    changes: tuple[Change, ...]
    used: int
    idle: int
    idle_why: str
    notes: tuple[str, ...]
    _explain: Callable[[str], str] = field(repr=False)

    @property
    def gap(self) -> float:
        """How far the value is from the bound, as a share of it; 0: no division is better."""
        return abs(self.bound - self.value) / abs(self.bound) if self.bound != self.value else 0.0

    def explain(self, job: Any) -> str:
        """Says what a job gets, what it would get with more GPUs, and who has them instead.

        Raises:
            InputError: there is no such job.
        """
        return self._explain(str(job))

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table as records; unknown values are None."""
        columns = self.table.to_pydict() if hasattr(self.table, "to_pydict") else self.table
        lists = {
            name: cells.tolist() if hasattr(cells, "tolist") else cells for name, cells in columns.items()
        }
        made = (dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True))
        return [{name: None if cell != cell else cell for name, cell in row.items()} for row in made]

    def to_json(self) -> dict[str, Any]:
        """The whole answer as values of JSON."""
        names = ("objective", "value", "bound", "gap", "prices", "used", "idle", "idle_why", "notes")
        changes = [change.to_json() for change in self.changes]
        rows = [
            {name: row[name] for name in _SAID} | {"nodes": self.placement.get(str(row["job"]), {})}
            for row in self.rows()
        ]
        return {name: getattr(self, name) for name in names} | {"jobs": rows, "changes": changes}

    def __repr__(self) -> str:
        """Shows the whole, without the rows."""
        return (
            f"Allocation({self.objective}={figure(self.value)}, bound={figure(self.bound)}, "
            f"{counted(len(self.placement), 'job')} on {counted(self.used, 'GPU')}, {self.idle:,} idle)"
        )


def allocate(
    jobs: Any,
    pool: Any,
    *,
    objective: str = "fair",
    held: Any = None,
    p: float = -1.0,
    profile: Profiles | Mapping[str, Profiles] | None = None,
    **settings: Any,
) -> Allocation:
    """Divides a pool of GPUs over jobs: who gets how many, on which nodes, and who waits (docs/allocate.md).

    Args:
        jobs: as in `plan_fleet`; beside a Recipe's fields each may have `min_gpus`, `max_gpus`, `weight`, `gpu` (types between
            `;`), `pinned`, `done_samples`, `age_seconds`, `restarts`, `restart_seconds`, `deadline_hours`, `profile` (a file).
        pool: a table of nodes (`gpus`, and `node`, `gpu`, `price_per_gpu_hour` and a Cluster's other fields), a Cluster, or
            a number of GPUs in one node.
        objective: "fair", "throughput", "finish" or "cost".
        held: a table of what each job has now: `job`, `node`, `gpus`. What is not in it is free.
        p: of `fair`, the exponent of the mean: -1 the harmonic, 0 the geometric, 1 the arithmetic one; from -10 to 1.
        profile: as in `plan_fleet`, or a mapping of jobs' ids to theirs: without one a job has no speed, and waits.
        settings: as in `plan_fleet`.

    Returns:
        An `Allocation`. A job that cannot run waits with the reason, and stops no other.

    Raises:
        InputError: a table cannot be read, an id or a node is there twice, more is held of a node than it has, a setting
            is not legal.

    >>> from isobatch.forecast.profile import Constant, Profile
    >>> speed = Profile(gradient_bytes=1e8, compute_constant=Constant(value=0.01), overlap=Constant(value=1),
    ...     compute_per_sample=Constant(value=0.001), intra_latency_us=Constant(value=5), intra_gb_s=Constant(value=10))
    >>> found = allocate({"job": ["a", "b"], "effective_batch": [512, 64], "lr": [0.1, 0.1]}, 8, profile=speed)
    >>> found.table["gpus"].tolist(), found.gap
    ([4, 4], 0.0)
    """
    one_of(objective, "objective", OBJECTIVES)
    p = real(p, "p", "a number from -10 to 1", lambda x: -10 <= x <= 1)
    where = read_pool(pool)
    asked = read_jobs(jobs, profile, settings)
    holds, gone = read_held(held, where)
    division = _Division(asked, where, Planner(asked, where, settings), named(asked, holds), objective, p)
    return division.answer(_notes(asked, holds, gone), gone)


def _notes(jobs: Jobs, holds: dict[str, Held], gone: dict[str, list[str]]) -> tuple[str, ...]:
    ended = [name for name in dict.fromkeys((*holds, *gone)) if name not in set(jobs.ids)]
    return (f"held by jobs that are not among the jobs, and free: {few(ended)}",) if ended else ()


class _Division:
    """A question, and the steps to its answer."""

    def __init__(
        self, jobs: Jobs, pool: Pool, planner: Planner, held: dict[int, Held], objective: str, p: float
    ) -> None:
        self.jobs, self.pool, self.planner, self.held, self.objective = jobs, pool, planner, held, objective
        self.shape = {row: shape for row, mine in held.items() if (shape := pool.shape(mine)) is not None}
        self.choices = planner.choices(self.shape)
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

    def answer(self, notes: tuple[str, ...], gone: dict[str, list[str]]) -> Allocation:
        """Puts the answer into words and tables."""
        chosen = self.choice.copy()
        for row in np.flatnonzero(self.pinned).tolist():
            mine = np.flatnonzero(self.choices.job == row)
            chosen[row] = mine[0] if len(mine) else -1
            self.nodes[row] = self.held[row]
        used = sum(sum(mine.values()) for mine in self.nodes.values())
        placement = {self.jobs.ids[row]: self.nodes[row] for row in sorted(self.nodes)}
        whole = self.values.whole
        value, bound = whole(self.value), whole(self.bound)
        return Allocation(
            self.objective,
            table_of(
                self.jobs,
                self.planner,
                self.choices,
                self.values,
                chosen,
                self.nodes,
                self.held,
                gone,
                self.objective,
            ),
            placement,
            value,
            bound,
            {
                f"{at}: {kind}": price
                for at, (kind, price) in enumerate(zip(self.pool.kinds, self.prices, strict=True))
            },
            changes_of(self.jobs.ids, self.held, self.nodes),
            used,
            self.pool.total - used,
            why_idle(self.pool, self.choices, self.values, chosen, self.nodes),
            notes,
            lambda job: _explained(self, chosen, job),
        )


def _explained(it: _Division, chosen: NDArray[np.int64], job: str) -> str:
    """What one job gets and why not more."""
    row = {name: at for at, name in enumerate(it.jobs.ids)}.get(one_of(job, "job", it.jobs.ids))
    assert row is not None
    mine, has = np.flatnonzero(it.choices.job == row), int(chosen[row])
    nodes = few([f"{gpus} on {node}" for node, gpus in it.nodes.get(row, {}).items()], 8)
    lines = [f"{job} has {nodes}" if nodes else f"{job} waits"]
    known = mine[~np.isnan(it.values.value[mine])]
    now, gpus = (it.values.value[has], int(it.choices.gpus[has])) if has >= 0 else (it.values.wait[row], 0)
    kind = it.choices.kind[has] if has >= 0 else it.choices.kind[known[:1]].sum()
    more = known[(it.choices.kind[known] == kind) & (it.choices.gpus[known] > gpus)]
    if not len(more):
        return f"{lines[0]}; it can use no more of this kind"
    next_up = int(more[np.argmin(it.choices.gpus[more])])
    extra, gain = int(it.choices.gpus[next_up]) - gpus, it.values.value[next_up] - now
    lines.append(
        f"with {counted(extra, 'GPU')} more its part of the sum would be larger by {figure(gain)}, {figure(gain / extra)} a GPU"
    )
    lines.append(f"the price of a GPU of this kind is {figure(it.prices[int(kind)])}")
    others = _losses(it, chosen, int(kind), row)
    if others:
        lines.append(
            f"those who have them would lose, a GPU: {few(f'{name} {figure(loss)}' for loss, name in others[:3])}"
        )
    return "; ".join(lines)


def _losses(it: _Division, chosen: NDArray[np.int64], kind: int, but: int) -> list[tuple[float, str]]:
    """What each other job on a kind would lose for each GPU that it gave, the least first."""
    found = []
    for row, at in enumerate(chosen.tolist()):
        if at < 0 or row == but or it.pinned[row] or it.choices.kind[at] != kind:
            continue
        mine = np.flatnonzero((it.choices.job == row) & it.open & (it.choices.kind == kind))
        fewer = mine[it.choices.gpus[mine] < it.choices.gpus[at]]
        losses = [
            (it.values.value[at] - it.values.value[o]) / (it.choices.gpus[at] - it.choices.gpus[o])
            for o in fewer
        ]
        losses.append((it.values.value[at] - it.values.wait[row]) / it.choices.gpus[at])
        found.append((float(min(losses)), it.jobs.ids[row]))
    return sorted(found)
