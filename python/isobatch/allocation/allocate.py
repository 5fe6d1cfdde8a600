"""Division of a pool of GPUs over jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from isobatch.allocation.answer import Change, changes_of, explained, refuse_names, table_of, why_idle
from isobatch.allocation.division import Division
from isobatch.allocation.jobs import Planner, Profiles, read_jobs
from isobatch.allocation.nodes import Held, read_held, read_pool
from isobatch.allocation.objectives import OBJECTIVES
from isobatch.fleet.query import replaced
from isobatch.limits import one_of, real
from isobatch.words import counted, few, figure

_OF_PLAN = ("micro_batch", "accumulation", "effective_batch", "lr")
_IN_JSON = (
    "job",
    "status",
    "gpus",
    "gpu",
    "why",
    "goodput",
    "speedup",
    "hours_left",
    "deadline_hours",
    "cost",
    *_OF_PLAN,
)
"""Fields of each row in JSON, beside its nodes."""


@dataclass(frozen=True)
class Allocation:
    """An answer: the GPUs of each job, on its nodes, and the jobs that wait.

    Attributes:
        objective: what it makes as good as can be.
        table: a row a job, as `plan_fleet`'s result: `job`, `status` (runs, waits, stays, moves), `gpus`,
            `gpu`, `nodes`, `why`, `goodput` (samples of the tuned batch's worth a second), `speedup` (over
            its fair share), `hours_left`, and its plan.
        placement: the GPUs on each node, by the job's id; jobs that wait have none.
        value: of the objective.
        bound: no division has a better value.
        prices: what one GPU more of each kind would add to the sum that the objective makes, at most.
        changes: what to do, in an order in which no node is ever asked for more than it has.
        used, idle: GPUs; `idle_why` says why.
        notes: what the caller should know of `held`, and of keywords that columns of the jobs replace.
    """

    objective: str
    placement: dict[str, Held]
    value: float
    bound: float
    prices: dict[str, float]
    changes: tuple[Change, ...]
    used: int
    idle: int
    idle_why: str
    notes: tuple[str, ...]
    _of: tuple[Division, Planner, dict[int, list[str]]] = field(repr=False)
    """The source of the rows, which are made on demand."""

    @cached_property
    def _rows(self) -> tuple[Any, list[str]]:
        return table_of(*self._of)

    @property
    def table(self) -> Any:
        """The rows, planned when they are first asked for."""
        return self._rows[0]

    @property
    def gap(self) -> float:
        """How far the value is from the bound, as a share of it; 0: no division is better."""
        return abs(self.bound - self.value) / abs(self.bound) if self.bound != self.value else 0.0

    @property
    def of_running(self) -> float:
        """The value without the waiting jobs: of objective cost what the others cost."""
        division = self._of[0]
        running = division.choice[division.choice >= 0]
        return division.values.whole(float(np.nansum(division.values.value[running])))

    @property
    def uncapped(self) -> int:
        """Counts the running jobs without a cap on the micro-batch."""
        division, planner, _ = self._of
        running = division.choice[division.choice >= 0]
        return planner.uncapped(division.choices.job[running], division.choices.cluster[running])

    def explain(self, job: Any) -> str:
        """Describes the GPUs of a job, the gain of more, and the loss of other jobs.

        Raises:
            InputError: there is no such job.
        """
        return explained(self._of[0], self._rows[1], str(job))

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table as records; unknown values are None."""
        columns = self.table.to_pydict() if hasattr(self.table, "to_pydict") else self.table
        lists = {
            name: cells.tolist() if hasattr(cells, "tolist") else cells for name, cells in columns.items()
        }
        records = (dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True))
        return [{name: None if cell != cell else cell for name, cell in row.items()} for row in records]

    def to_json(self) -> dict[str, Any]:
        """The whole answer as values of JSON."""
        names = ("objective", "value", "bound", "gap", "prices", "used", "idle", "idle_why", "notes")
        changes = [change.to_json() for change in self.changes]
        rows = [
            {name: row.get(name) for name in _IN_JSON} | {"nodes": self.placement.get(str(row["job"]), {})}
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
    decimal: str | None = None,
    **settings: Any,
) -> Allocation:
    """Divides a pool of GPUs over jobs (docs/allocate.md).

    Args:
        jobs: as in `plan_fleet`; beside a Recipe's fields each may have `min_gpus`, `max_gpus`, `weight`,
            `gpu` (types between `;`), `pinned`, `done_samples`, `age_seconds`, `restarts`, `restart_seconds`,
            `deadline_hours`, `profile` (a file).
        pool: a table of nodes (`gpus`, and `node`, `gpu`, `price_per_gpu_hour` and a Cluster's other fields),
            a Cluster, or a number of GPUs in one node.
        objective: "fair", "throughput", "finish" or "cost".
        held: what each job has now: a table of `job`, `node`, `gpus`, or an earlier answer's `placement`. All
            else is free.
        p: of `fair`, the exponent of the mean: -1 the harmonic, 0 the geometric, 1 the arithmetic one; from
            -10 to 1.
        profile: as in `plan_fleet`, or a mapping of jobs' ids to theirs: without one a job has no speed, and
            waits.
        decimal: the sign before fractions in texts of the tables, as in a fleet's.
        settings: as in `plan_fleet`.

    Returns:
        An `Allocation`. A job that cannot run waits with the reason, and stops no other.

    Raises:
        InputError: a table cannot be read, an id or a node is there twice, more is held of a node than it
            has, a setting is not legal.

    >>> from isobatch.forecast.profile import Constant, Profile
    >>> speed = Profile(gradient_bytes=1e8, compute_constant=Constant(value=0.01), overlap=Constant(value=1),
    ...     compute_per_sample=Constant(value=0.001), intra_latency_us=Constant(value=5),
    ...     intra_gb_s=Constant(value=10))
    >>> jobs = {"job": ["a", "b"], "effective_batch": [512, 64], "lr": [0.1, 0.1]}
    >>> answer = allocate(jobs, 8, profile=speed)
    >>> answer.table["gpus"].tolist(), answer.gap
    ([4, 4], 0.0)
    """
    one_of(objective, "objective", OBJECTIVES)
    p = real(p, "p", "a number from -10 to 1", lambda x: -10 <= x <= 1)
    where = read_pool(pool, decimal)
    given = {*settings, *(["profile"] if profile is not None else [])}
    job_records = read_jobs(jobs, profile, settings, decimal)
    refuse_names(job_records)
    holdings, gone, absent = read_held(held, where, job_records.row_of)
    planner = Planner(job_records, where, settings)
    division = Division(job_records, where, planner, holdings, objective, p)
    idle, whole = int(division.idle.sum()), division.values.whole
    return Allocation(
        objective,
        {job_records.ids[row]: {**division.nodes[row]} for row in sorted(division.nodes)},
        whole(division.value),
        whole(division.bound),
        {
            f"{at}: {kind}": price
            for at, (kind, price) in enumerate(zip(where.kinds, division.prices, strict=True))
        },
        changes_of(job_records.ids, division.held, division.nodes),
        where.total - idle,
        idle,
        why_idle(division),
        (
            *([f"held by unknown jobs, and counted as free: {few(absent)}"] if absent else []),
            *replaced(given & job_records.columns),
        ),
        (division, planner, gone),
    )
