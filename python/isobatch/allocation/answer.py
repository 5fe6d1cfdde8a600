"""The answer: its rows, the order of its changes, why GPUs are idle, and why a job has no more."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.allocation.division import Division
from isobatch.allocation.jobs import OWN, Choices, Jobs, Planner
from isobatch.allocation.nodes import Held
from isobatch.errors import InputError
from isobatch.fleet.results import INFEASIBLE, USUAL, result_in_arrow
from isobatch.limits import one_of
from isobatch.reason import Reason
from isobatch.words import counted, few, figure

_PLAN = tuple(name for name in USUAL if name not in ("status", "world_size"))
_OWN_COLUMNS = ("job", "status", "gpus", "gpu", "nodes", "why", "goodput", "speedup", "hours_left")

_MISFITS = (
    Reason.MODEL_PARALLEL,
    Reason.EXPERT_PARALLEL,
    Reason.NOT_DIVISIBLE,
    Reason.MULTIPLE_UNMET,
    Reason.ACCUMULATION_UNMET,
    Reason.MICRO_BATCH_UNMET,
    Reason.RAMP_NOT_DIVISIBLE,
)
_OF_SHAPE = np.uint64(sum(1 << reason.bit for reason in _MISFITS))
"""Reasons against one count, where others may be right."""


@dataclass(frozen=True)
class Change:
    """A change of a job: `action` is stop, shrink, grow or start; a job that moves stops and starts again.

    `nodes` are its nodes afterwards.
    """

    job: str
    action: str
    nodes: Held

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def changes_of(ids: Sequence[str], holdings: dict[int, Held], nodes: dict[int, Held]) -> tuple[Change, ...]:
    """Orders the changes: first jobs stop and shrink, then jobs grow and start."""
    first: list[Change] = []
    then: list[Change] = []
    none: Held = {}
    for row, name in enumerate(ids):
        before, after = holdings.get(row, none), nodes.get(row, none)
        if before is after or before == after:
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
    """Refuses columns of the jobs with the name of a result column."""
    for name in jobs.table.extra:
        if name in (*_OWN_COLUMNS, *_PLAN) and name not in OWN:
            raise InputError(f"{name} is a column of the jobs and of the result: rename it", field=name)


def table_of(division: Division, planner: Planner, gone: dict[int, list[str]]) -> tuple[Any, list[str]]:
    """Makes one row per job, as an Arrow table if the jobs are one, and the reasons of waiting jobs."""
    jobs, of_kind = division.jobs, [str(kind.hardware.get("gpu") or "") for kind in division.pool.kinds]
    nodes = [division.nodes.get(row, {}) for row in range(jobs.rows)]
    types = [{of_kind[division.pool.kind_of[node]] for node in own_nodes} for own_nodes in nodes]
    status = [_status(division.held.get(row), own_nodes) for row, own_nodes in enumerate(nodes)]
    plans = _plans(division, planner)
    why = _reasons(division, planner, plans["reasons"])
    for row, names in gone.items():
        lost = f"nodes that it held are not in the pool: {', '.join(names[:8])}"
        why[row] = f"{why[row]}; {lost}" if why[row] else lost
    table: dict[str, Any] = {
        "job": jobs.table.row_ids,
        "status": np.array(status, np.str_),
        "gpus": np.array([sum(own_nodes.values()) for own_nodes in nodes], np.int64),
        "gpu": np.array([";".join(sorted(gpu_types)) for gpu_types in types], np.str_),
        "nodes": np.array([";".join(f"{n}:{gpus}" for n, gpus in own.items()) for own in nodes], np.str_),
        "why": np.array(why, np.str_),
    }
    known = np.flatnonzero(division.choice >= 0)
    for name, column in (
        ("goodput", division.choices.goodput),
        ("speedup", division.values.speedup),
        ("hours_left", division.values.hours),
    ):
        table[name] = np.full(jobs.rows, np.nan)
        table[name][known] = column[division.choice[known]]
    table |= plans
    deadlines = jobs.number["deadline_hours"]
    if not np.isnan(deadlines).all():
        table["deadline_hours"] = deadlines
    for name, column in jobs.table.extra.items():
        table.setdefault(name, column)
    return _in_arrow(table) if jobs.table.arrow else table, why


def _in_arrow(table: dict[str, Any]) -> Any:
    import pyarrow as pa

    columns = {}
    for name, column in table.items():
        if name in _PLAN or (isinstance(column, np.ndarray) and column.dtype.kind == "f"):
            columns[name] = result_in_arrow(name, np.ascontiguousarray(column))
        else:
            columns[name] = pa.array(column) if isinstance(column, np.ndarray) else column
    return pa.table(columns)


def _status(before: Held | None, after: Held) -> str:
    if not after:
        return "waits"
    return "runs" if not before else "stays" if before == after else "moves"


def _plans(division: Division, planner: Planner) -> dict[str, NDArray[Any]]:
    """Plans each job at its count; a waiting job has only the reasons of a telling count."""
    rows = np.unique(division.choices.job)
    runs = division.choice[rows] >= 0
    at = np.where(runs, division.choice[rows], _telling(division.choices)[rows])
    planned = planner.planned(rows, division.choices.cluster[at], _PLAN)
    plans: dict[str, NDArray[Any]] = {}
    for name, values in planned.items():
        unknown: Any = np.nan if values.dtype.kind == "f" else 0 if name == "reasons" else -1
        plans[name] = np.full(division.jobs.rows, unknown, values.dtype)
        shown = slice(None) if name == "reasons" else runs
        plans[name][rows[shown]] = values[shown]
    return plans


def _telling(choices: Choices) -> NDArray[np.int64]:
    """Finds the most telling choice of each job, of why it cannot run; −1 without choices.

    It is one whose count the job can be split over, and of these one with the most frequent reasons: 4 GPUs
    are no multiple of a model_parallel of 8, but no job waits for that where 8 are above its budget.
    """
    if not len(choices.job):
        return np.empty(0, np.int64)
    stops = choices.reasons & INFEASIBLE
    misfit = (stops & _OF_SHAPE != 0).astype(np.int64)
    order = np.lexsort((stops, misfit, choices.job))
    keys = np.stack([column[order].astype(np.uint64) for column in (choices.job, misfit, stops)])
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(keys.view(np.int64)) != 0).any(axis=0)]))
    sizes = np.diff(np.append(starts, len(order)))
    telling = np.full(int(choices.job.max(initial=-1)) + 1, -1)
    # The last that is written is the best: its counts fit, and are the most.
    best = np.lexsort((sizes, -misfit[order][starts]))
    telling[choices.job[order[starts[best]]]] = order[starts[best]]
    return telling


def _reasons(division: Division, planner: Planner, bits: NDArray[Any]) -> list[str]:
    """Gives the reason of each job with no GPUs or no known speed; else an empty text."""
    jobs, choices = division.jobs, division.choices
    planned, fast, worth = np.zeros((3, jobs.rows), bool)
    planned[choices.job] = True
    fast[choices.job[~np.isnan(choices.rate)]] = True
    worth[choices.job[~np.isnan(division.values.value)]] = True
    sentences, telling = [], _telling(choices)
    for row in range(jobs.rows):
        if row in division.nodes:
            sentences.append("" if fast[row] else "pinned: its speed on the GPUs that it holds is not known")
        elif row in jobs.fault:
            sentences.append(jobs.fault[row])
        elif not planned[row]:
            sentences.append("the pool has no count within its min_gpus, max_gpus and gpu")
        elif not fast[row]:
            reasons = [reason for reason in Reason.of(int(bits[row])) if reason.severity == "infeasible"]
            stops = [reason.text for reason in reasons]
            if any(reason.startswith("invalid_") for reason in reasons):
                stops = [*filter(None, [planner.faults(row, int(choices.cluster[telling[row]]))])] or stops
            mute = Reason.OTHER_HARDWARE.text if jobs.profiles[row] else "no profile: its speed is not known"
            sentences.append("; ".join(stops) or mute)
        elif not worth[row]:
            sentences.append(_no_worth(division, row))
        else:
            sentences.append("other jobs gain more from the GPUs")
    return sentences


def _no_worth(division: Division, row: int) -> str:
    hours = division.choices.hours[division.choices.job == row]
    if (hours <= 0).any():
        return "nothing of its run is left"
    if np.isnan(hours).all():
        needs = "deadline_hours" if division.objective in ("fair", "throughput") else division.objective
        return f"{needs} needs its duration"
    if not np.isnan(division.jobs.number["deadline_hours"][row]):
        return "no count meets its deadline_hours"
    return "cost needs price_per_gpu_hour" if division.objective == "cost" else "its worth is not known"


def why_idle(division: Division) -> str:
    """Says why GPUs are idle: no job gains from them, or each node has too few for a job that would."""
    if not division.idle.any():
        return ""
    choices, values, has = division.choices, division.values, division.choice[division.choices.job]
    same = (has >= 0) & (choices.kind[has] == choices.kind)
    extra = choices.gpus - np.where(same, choices.gpus[has], 0)
    now = np.where(has >= 0, values.value[has], values.wait[choices.job])
    fits = (extra > 0) & (extra <= division.idle[choices.kind])
    if ((values.value > now) & fits).any():
        return "scattered: no node has enough for a job that would gain"
    unknown = choices.reasons & np.uint64(1 << Reason.OTHER_HARDWARE.bit) != 0
    mute = np.unique(choices.job[unknown & fits & ~division.pinned[choices.job]])
    if len(mute):
        return (
            f"the speed of {counted(len(mute), 'job')} on more is not known: the profile lacks a link "
            "(inter_gb_s of the nodes), or is of other GPUs"
        )
    return "no job gains from them" if division.nodes else "no job can run"


def explained(division: Division, why: Sequence[str], job: str) -> str:
    """Describes the GPUs of a job, the gain of more, their price, and the loss of other jobs."""
    row = division.jobs.row_of[one_of(job, "job", division.jobs.ids)]
    choices, value = division.choices, division.values.value
    has, options = int(division.choice[row]), np.flatnonzero((choices.job == row) & division.open)
    nodes = few([f"{gpus} on {node}" for node, gpus in division.nodes.get(row, {}).items()], 8)
    text = f"{job} has {nodes}" if nodes else f"{job} waits"
    if division.pinned[row] or not len(options):
        return f"{text}: {'pinned' if division.pinned[row] else why[row]}"
    kind = choices.kind[has if has >= 0 else options[0]]
    now, gpus = (value[has], choices.gpus[has]) if has >= 0 else (division.values.wait[row], 0)
    is_more = (choices.kind[options] == kind) & (choices.gpus[options] > gpus) & (value[options] > now)
    more = options[is_more]
    if not len(more):
        return f"{text}; it gains nothing from more of this kind"
    extra, gain = choices.gpus[more] - gpus, value[more] - now
    best = int(np.argmax(gain / extra))
    text += (
        f"; {counted(int(extra[best]), 'GPU')} more would add {figure(gain[best])} to its part of the sum, "
        f"{figure(gain[best] / extra[best])} per GPU; the price of a GPU of this kind is "
        f"{figure(division.prices[kind])}"
    )
    losses = sorted(zip(_losses(division, kind), division.jobs.ids, strict=True))
    losers = [f"{name} {figure(loss)}" for loss, name in losses if loss < np.inf and name != job]
    return f"{text}; their holders would lose, per GPU: {few(losers, 3)}" if losers else text


def _losses(division: Division, kind: np.uint32) -> list[float]:
    """Returns the smallest loss per GPU of each job on a kind; infinite for all other jobs."""
    choices, value, choice = division.choices, division.values.value, division.choice
    of_kind = np.flatnonzero((choice >= 0) & ~division.pinned & (choices.kind[choice] == kind))
    has = choice[of_kind]
    smallest = np.full(division.jobs.rows, np.inf)
    smallest[of_kind] = (value[has] - division.values.wait[of_kind]) / choices.gpus[has]
    has = choice[choices.job]
    fewer = np.flatnonzero(division.open & (has >= 0) & (choices.kind == kind) & (choices.kind[has] == kind))
    fewer = fewer[choices.gpus[fewer] < choices.gpus[has[fewer]]]
    has = has[fewer]
    loss = (value[has] - value[fewer]) / (choices.gpus[has] - choices.gpus[fewer])
    np.minimum.at(smallest, choices.job[fewer], loss)
    return smallest.tolist()
