"""The answer's rows, the order of its changes, and why GPUs are idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.allocation.jobs import OWN, Choices, Jobs, Planner
from isobatch.allocation.nodes import Held, Pool
from isobatch.allocation.objectives import Values
from isobatch.errors import InputError
from isobatch.fleet.results import USUAL, result_in_arrow
from isobatch.reason import Reason

_PLAN = tuple(name for name in USUAL if name not in ("status", "world_size"))


@dataclass(frozen=True)
class Change:
    """One thing to do: `action` is stop, shrink, grow or start; `nodes` are what the job then has. A job that moves stops, and
    starts again."""

    job: str
    action: str
    nodes: Held

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def changes_of(ids: Sequence[str], held: dict[int, Held], nodes: dict[int, Held]) -> tuple[Change, ...]:
    """Orders what is to do: first who stops and shrinks, then who grows and starts."""
    first: list[Change] = []
    then: list[Change] = []
    for row, name in enumerate(ids):
        before, after = held.get(row, {}), nodes.get(row, {})
        if before == after:
            continue
        if after and all(before.get(node, 0) >= gpus for node, gpus in after.items()):
            first.append(Change(name, "shrink", after))
        elif before and all(after.get(node, 0) >= gpus for node, gpus in before.items()):
            then.append(Change(name, "grow", after))
        else:
            first += [Change(name, "stop", {})] if before else []
            then += [Change(name, "start", after)] if after else []
    return *first, *then


def table_of(
    jobs: Jobs,
    planner: Planner,
    choices: Choices,
    values: Values,
    chosen: NDArray[np.int64],
    nodes: dict[int, Held],
    held: dict[int, Held],
    gone: dict[str, list[str]],
    objective: str,
) -> Any:
    """Makes a row a job; an Arrow table where the jobs are one."""
    runs = np.array([row in nodes for row in range(jobs.rows)], bool)
    known = chosen >= 0
    at = np.where(known, chosen, 0)

    def of(column: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(known, column[at], np.nan) if len(column) else np.full(jobs.rows, np.nan)

    types, status, gpus, places = [], [], [], []
    names = [str(kind.hardware.get("gpu") or "") for kind in planner.pool.kinds]
    for row in range(jobs.rows):
        mine = nodes.get(row, {})
        types.append(";".join(sorted({names[planner.pool.kind_of[node]] for node in mine})))
        status.append(_status(held.get(row), mine))
        gpus.append(sum(mine.values()))
        places.append(";".join(f"{node}:{n}" for node, n in mine.items()))
    plans = _plans(jobs, planner, choices, chosen)
    why = _reasons(jobs, choices, values, nodes, plans["reasons"], objective)
    for row, name in enumerate(jobs.ids):
        if name in gone:
            lost = f"nodes that it held are not in the pool: {', '.join(gone[name][:8])}"
            why[row] = f"{why[row]}; {lost}" if why[row] else lost
    table: dict[str, Any] = {
        "job": jobs.table.row_ids,
        "status": np.array(status, np.str_),
        "gpus": np.array(gpus, np.int64),
        "gpu": np.array(types, np.str_),
        "nodes": np.array(places, np.str_),
        "why": np.array(why, np.str_),
        "goodput": np.where(runs, of(choices.goodput), np.nan),
        "speedup": np.where(runs, of(values.speedup), np.nan),
        "hours_left": np.where(runs, of(values.hours), np.nan),
        **plans,
    }
    for name, column in jobs.table.extra.items():
        if name in table and name not in OWN:
            raise InputError(f"{name} is a column of the jobs and of the result: rename it", field=name)
        table.setdefault(name, column)
    return _in_arrow(table) if jobs.table.arrow else table


def _in_arrow(table: dict[str, Any]) -> Any:
    import pyarrow as pa

    made = {}
    for name, column in table.items():
        if name in _PLAN or (isinstance(column, np.ndarray) and column.dtype.kind == "f"):
            made[name] = result_in_arrow(name, np.ascontiguousarray(column))
        else:
            made[name] = pa.array(column) if isinstance(column, np.ndarray) else column
    return pa.table(made)


def _status(before: Held | None, after: Held) -> str:
    if not after:
        return "waits"
    return "runs" if not before else "stays" if before == after else "moves"


def _plans(
    jobs: Jobs, planner: Planner, choices: Choices, chosen: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The plan of each job at its count; of one that waits only the reasons, on its first count."""
    rows, first = np.unique(choices.job, return_index=True)
    at = np.where(chosen[rows] >= 0, chosen[rows], first)
    found = planner.planned(rows, choices.cluster[at], _PLAN) if len(rows) else {}
    plans: dict[str, NDArray[Any]] = {}
    for name in _PLAN:
        values = found.get(name, np.empty(0, np.uint64 if name == "reasons" else np.float64))
        unknown: Any = np.nan if values.dtype.kind == "f" else 0 if name == "reasons" else -1
        plans[name] = np.full(jobs.rows, unknown, values.dtype)
        kept = np.ones(len(rows), bool) if name == "reasons" else chosen[rows] >= 0
        plans[name][rows[kept]] = values[kept]
    return plans


def _reasons(
    jobs: Jobs, choices: Choices, values: Values, nodes: dict[int, Held], bits: NDArray[Any], objective: str
) -> list[str]:
    """Says of each job that waits why; of one that runs without a speed, that too."""
    planned, fast, worth = np.zeros((3, jobs.rows), bool)
    planned[choices.job] = True
    fast[choices.job[~np.isnan(choices.rate)]] = True
    worth[choices.job[~np.isnan(values.value)]] = True
    found = []
    for row in range(jobs.rows):
        if row in nodes:
            found.append("" if fast[row] else "pinned: nothing says how fast it is on what it holds")
        elif row in jobs.fault:
            found.append(jobs.fault[row])
        elif not planned[row]:
            found.append("no count of the pool is within its min_gpus, max_gpus and gpu")
        elif not fast[row]:
            found.append(_no_speed(int(bits[row])))
        elif not worth[row]:
            found.append(_no_worth(jobs, choices, objective, row))
        else:
            found.append("other jobs gain more by the GPUs")
    return found


def _no_speed(bits: int) -> str:
    stops = [reason for reason in Reason.of(bits) if reason.severity == "infeasible"]
    if stops:
        return "; ".join(reason.text for reason in stops)
    return "no profile: nothing says how fast it is"


def _no_worth(jobs: Jobs, choices: Choices, objective: str, row: int) -> str:
    hours = choices.hours[choices.job == row]
    if (hours <= 0).any():
        return "nothing of its run is left"
    if np.isnan(hours).all():
        return f"{'deadline_hours' if objective in ('fair', 'throughput') else objective} needs its duration"
    if not np.isnan(jobs.number["deadline_hours"][row]):
        return "no count keeps its deadline_hours"
    return f"{objective} needs price_per_gpu_hour" if objective == "cost" else "nothing says what it is worth"


def why_idle(
    pool: Pool, choices: Choices, values: Values, chosen: NDArray[np.int64], nodes: dict[int, Held]
) -> str:
    """Says why GPUs are idle: no job gains by them, or they are in pieces too small for whom they would help."""
    left = {node: kind.gpus for kind in pool.kinds for node in kind.nodes}
    for mine in nodes.values():
        for node, gpus in mine.items():
            left[node] -= gpus
    idle = [sum(left[node] for node in kind.nodes) for kind in pool.kinds]
    if not any(idle):
        return ""
    has = np.maximum(chosen, 0)
    now = np.where(chosen >= 0, values.value[has] if len(values.value) else 0.0, values.wait)
    same = (
        (chosen[choices.job] >= 0) & (choices.kind[has[choices.job]] == choices.kind)
        if len(choices.kind)
        else np.zeros(0, bool)
    )
    extra = choices.gpus - np.where(same, choices.gpus[has[choices.job]] if len(choices.kind) else 0, 0)
    gains = values.value > now[choices.job]
    wanted = gains & (extra <= np.array(idle, np.int64)[choices.kind])
    return "in pieces: no node has enough for a job that gains" if wanted.any() else "no job gains by them"
