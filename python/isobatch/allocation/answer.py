"""The answer: its rows, the order of its changes, why GPUs are idle, and why a job has no more."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.allocation.division import Division
from isobatch.allocation.jobs import OWN, Jobs, Planner
from isobatch.allocation.nodes import Held
from isobatch.errors import InputError
from isobatch.fleet.results import USUAL, result_in_arrow
from isobatch.limits import one_of
from isobatch.reason import Reason
from isobatch.words import counted, few, figure

_PLAN = tuple(name for name in USUAL if name not in ("status", "world_size"))
_OWN_COLUMNS = ("job", "status", "gpus", "gpu", "nodes", "why", "goodput", "speedup", "hours_left")

_OTHERS = "other jobs gain more by the GPUs"


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
    none: Held = {}
    moved = [row for row in range(len(ids)) if held.get(row, none) is not nodes.get(row, none)]
    for row in moved:
        name, before, after = ids[row], held.get(row, none), nodes.get(row, none)
        if before == after:
            continue
        if after and all(before.get(node, 0) >= gpus for node, gpus in after.items()):
            first.append(Change(name, "shrink", {**after}))
        elif before and all(after.get(node, 0) >= gpus for node, gpus in before.items()):
            then.append(Change(name, "grow", {**after}))
        else:
            first += [Change(name, "stop", {})] if before else []
            then += [Change(name, "start", {**after})] if after else []
    return *first, *then


def refuse_names(jobs: Jobs) -> None:
    """Refuses columns of the jobs that have a name of the result's."""
    for name in jobs.table.extra:
        if name in (*_OWN_COLUMNS, *_PLAN) and name not in OWN:
            raise InputError(f"{name} is a column of the jobs and of the result: rename it", field=name)


def table_of(it: Division, planner: Planner, gone: dict[int, list[str]]) -> tuple[Any, list[str]]:
    """Makes a row a job, an Arrow table where the jobs are one; also returns why each waits."""
    jobs, of_kind = it.jobs, [str(kind.hardware.get("gpu") or "") for kind in it.pool.kinds]
    nodes = [it.nodes.get(row, {}) for row in range(jobs.rows)]
    types = [{of_kind[it.pool.kind_of[node]] for node in mine} for mine in nodes]
    plans = _plans(it, planner)
    why = _reasons(it, plans["reasons"])
    for row, names in gone.items():
        lost = f"nodes that it held are not in the pool: {', '.join(names[:8])}"
        why[row] = f"{why[row]}; {lost}" if why[row] else lost
    table: dict[str, Any] = {
        "job": jobs.table.row_ids,
        "status": np.array([_status(it.held.get(row), mine) for row, mine in enumerate(nodes)], np.str_),
        "gpus": np.array([sum(mine.values()) for mine in nodes], np.int64),
        "gpu": np.array([";".join(sorted(its)) for its in types], np.str_),
        "nodes": np.array([";".join([f"{node}:{n}" for node, n in mine.items()]) for mine in nodes], np.str_),
        "why": np.array(why, np.str_),
    }
    known = np.flatnonzero(it.choice >= 0)
    for name, column in (
        ("goodput", it.choices.goodput),
        ("speedup", it.values.speedup),
        ("hours_left", it.values.hours),
    ):
        table[name] = np.full(jobs.rows, np.nan)
        table[name][known] = column[it.choice[known]]
    table |= plans
    for name, column in jobs.table.extra.items():
        table.setdefault(name, column)
    return _in_arrow(table) if jobs.table.arrow else table, why


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


def _plans(it: Division, planner: Planner) -> dict[str, NDArray[Any]]:
    """The plan of each job at its count; of one that waits only the reasons, on its first count."""
    rows, first = np.unique(it.choices.job, return_index=True)
    runs = it.choice[rows] >= 0
    at = np.where(runs, it.choice[rows], first)
    found = planner.planned(rows, it.choices.cluster[at], _PLAN)
    plans: dict[str, NDArray[Any]] = {}
    for name, values in found.items():
        unknown: Any = np.nan if values.dtype.kind == "f" else 0 if name == "reasons" else -1
        plans[name] = np.full(it.jobs.rows, unknown, values.dtype)
        shown = slice(None) if name == "reasons" else runs
        plans[name][rows[shown]] = values[shown]
    return plans


def _reasons(it: Division, bits: NDArray[Any]) -> list[str]:
    """Says of each job that waits why; of one that runs without a speed, that too."""
    planned, fast, worth = np.zeros((3, it.jobs.rows), bool)
    planned[it.choices.job] = True
    fast[it.choices.job[~np.isnan(it.choices.rate)]] = True
    worth[it.choices.job[~np.isnan(it.values.value)]] = True
    found = []
    for row in range(it.jobs.rows):
        if row in it.nodes:
            found.append("" if fast[row] else "pinned: nothing says how fast it is on what it holds")
        elif row in it.jobs.fault:
            found.append(it.jobs.fault[row])
        elif not planned[row]:
            found.append("no count of the pool is within its min_gpus, max_gpus and gpu")
        elif not fast[row]:
            stops = [it.text for it in Reason.of(int(bits[row])) if it.severity == "infeasible"]
            found.append("; ".join(stops) or "no profile: nothing says how fast it is")
        elif not worth[row]:
            found.append(_no_worth(it, row))
        else:
            found.append(_OTHERS)
    return found


def _no_worth(it: Division, row: int) -> str:
    hours = it.choices.hours[it.choices.job == row]
    if (hours <= 0).any():
        return "nothing of its run is left"
    if np.isnan(hours).all():
        needs = "deadline_hours" if it.objective in ("fair", "throughput") else it.objective
        return f"{needs} needs its duration"
    if not np.isnan(it.jobs.number["deadline_hours"][row]):
        return "no count keeps its deadline_hours"
    return (
        f"{it.objective} needs price_per_gpu_hour"
        if it.objective == "cost"
        else "nothing says what it is worth"
    )


def why_idle(it: Division) -> str:
    """Says why GPUs are idle: no job gains by them, or they are in pieces too small for whom they would help."""
    if not it.idle.any():
        return ""
    has = it.choice[it.choices.job]
    same = (has >= 0) & (it.choices.kind[has] == it.choices.kind)
    extra = it.choices.gpus - np.where(same, it.choices.gpus[has], 0)
    now = np.where(has >= 0, it.values.value[has], it.values.wait[it.choices.job])
    wanted = (it.values.value > now) & (extra <= it.idle[it.choices.kind])
    return "in pieces: no node has enough for a job that gains" if wanted.any() else "no job gains by them"


def explained(it: Division, why: Sequence[str], job: str) -> str:
    """Says what a job has, what more GPUs of the kind would give it, what one is worth, and what those would lose who have them."""
    row = it.jobs.row_of[one_of(job, "job", it.jobs.ids)]
    has, mine = int(it.choice[row]), np.flatnonzero((it.choices.job == row) & it.open)
    nodes = few([f"{gpus} on {node}" for node, gpus in it.nodes.get(row, {}).items()], 8)
    said = f"{job} has {nodes}" if nodes else f"{job} waits"
    if it.pinned[row] or not len(mine):
        return f"{said}: {'pinned' if it.pinned[row] else why[row]}"
    kind = it.choices.kind[has if has >= 0 else mine[0]]
    now, gpus = (it.values.value[has], it.choices.gpus[has]) if has >= 0 else (it.values.wait[row], 0)
    more = mine[
        (it.choices.kind[mine] == kind) & (it.choices.gpus[mine] > gpus) & (it.values.value[mine] > now)
    ]
    if not len(more):
        return f"{said}; it gains nothing by more of this kind"
    extra, gain = it.choices.gpus[more] - gpus, it.values.value[more] - now
    best = int(np.argmax(gain / extra))
    said += (
        f"; with {counted(int(extra[best]), 'GPU')} more its part of the sum would be larger by {figure(gain[best])}, "
        f"{figure(gain[best] / extra[best])} a GPU; the price of a GPU of this kind is {figure(it.prices[kind])}"
    )
    losses = [
        (loss, name) for loss, name in zip(_losses(it, kind), it.jobs.ids, strict=True) if loss < np.inf
    ]
    others = [f"{name} {figure(loss)}" for loss, name in sorted(losses) if name != job]
    return f"{said}; those who have them would lose, a GPU: {few(others, 3)}" if others else said


def _losses(it: Division, kind: np.uint32) -> list[float]:
    """What each job on a kind would lose for each GPU that it gave, at least; infinite of the others."""
    of_kind = np.flatnonzero((it.choice >= 0) & ~it.pinned & (it.choices.kind[it.choice] == kind))
    has = it.choice[of_kind]
    found = np.full(it.jobs.rows, np.inf)
    found[of_kind] = (it.values.value[has] - it.values.wait[of_kind]) / it.choices.gpus[has]
    has = it.choice[it.choices.job]
    fewer = np.flatnonzero(it.open & (has >= 0) & (it.choices.kind == kind) & (it.choices.kind[has] == kind))
    fewer = fewer[it.choices.gpus[fewer] < it.choices.gpus[has[fewer]]]
    has = has[fewer]
    loss = (it.values.value[has] - it.values.value[fewer]) / (it.choices.gpus[has] - it.choices.gpus[fewer])
    np.minimum.at(found, it.choices.job[fewer], loss)
    return found.tolist()
