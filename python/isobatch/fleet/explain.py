"""A row of a fleet's plans in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from isobatch.errors import InputError, missing, must_be, unknown
from isobatch.fleet.columns import CLUSTER_FIELDS, JOB_FIELDS, naming_column
from isobatch.fleet.query import own_clusters
from isobatch.fleet.results import RESULTS, STATUS
from isobatch.fleet.rows import Fleet, decimal_hint
from isobatch.fleet.table import InputTable, input_table
from isobatch.planning.settings import settings_of
from isobatch.reason import Reason, reason_names
from isobatch.recipes.cluster import NODE_GPUS
from isobatch.words import count, counted, duration, figure, percent, price, printable, ranged, real

_MAX_SHOWN_ROWS = 4
"""Other rows of a job that are listed."""

_OWN_FIELDS = {"job": JOB_FIELDS, "cluster": CLUSTER_FIELDS}
_UNMET = Reason.ACCUMULATION_UNMET, Reason.MICRO_BATCH_UNMET
_SOUGHT = {Reason.NOT_DIVISIBLE, Reason.MODEL_PARALLEL, Reason.RAMP_NOT_DIVISIBLE, *_UNMET}
"""Reasons for which the planner looks for GPU counts and batches nearby."""


def explain(table: Any, row: int, *, jobs: Any = None, clusters: Any = None) -> str:
    """Explains a row of a fleet's plans: how to train there, or why not and the nearest way.

    Each warning has its source. A table has results and no recipe: plan the row alone for the
    formulas (`ib.plan`).

    Args:
        table: what `plan_fleet` gave, or a file of it was read into: a dict of arrays, or any Arrow table.
        row: counted from 0.
        jobs, clusters: what was planned, a path or a table as in `plan_fleet`: of a row whose values are
            illegal, the field, its value and what is legal.

    Raises:
        InputError: there is no such row, the table is no fleet's, or the jobs or clusters have no row of that
            id.

    >>> from isobatch.fleet.plan_fleet import plan_fleet
    >>> from isobatch.recipes.recipe import Recipe
    >>> print(explain(plan_fleet([Recipe(effective_batch=256, lr=0.1, duration="9st")], [8]), 0))
    job 0, cluster 0, 8 GPUs: ok
    Micro-batch 32 × accumulation 1 × 8 replicas: 256 samples per step.
    Learning rate 0.1, as tuned.
    The run: 9 steps.
    """
    columns, length = _columns(table)
    if type(row) is not int:
        raise must_be("a whole number from 0", row, field="row")
    if not 0 <= row < length:
        raise InputError(f"row must be from 0 to {length - 1:,}, got {row:,}", field="row")
    inputs = None
    if jobs is not None or clusters is not None:
        if jobs is None:
            raise missing("jobs", "clusters go with the jobs that were planned on them")
        inputs = jobs if isinstance(jobs, Inputs) else Inputs(jobs, clusters)
    values = {name: _value(name, cells[row]) for name, cells in columns.items()}
    return "\n".join(_lines(values, columns, inputs))


def is_illegal(reasons: Any) -> bool:
    """Whether one of these reasons, in any table's form, is an illegal value."""
    return any(reason.startswith("invalid_") for reason in _reasons(reasons))


def _columns(table: Any) -> tuple[dict[str, Any], int]:
    """The table's columns by name, and its rows."""
    if isinstance(table, Mapping):
        columns = dict(table)
        if not all(hasattr(values, "__len__") for values in columns.values()):
            raise must_be("a table of plans", table, field="table")
        length = min((len(values) for values in columns.values()), default=0)
    elif hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        whole = pa.table(table)
        columns, length = {name: whole[name] for name in whole.column_names}, whole.num_rows
    else:
        raise must_be("a table of plans", table, field="table")
    for name in ("status", "reasons"):
        if name not in columns:
            why = f"the table has no column {name!r}: it does not hold a fleet's plans"
            raise InputError(why, field="table")
    return columns, length


def _value(name: str, value: Any) -> Any:
    """A value as Python has it, whatever the table."""
    if hasattr(value, "as_py"):
        with naming_column(name, None):
            value = value.as_py()
    value = value.item() if hasattr(value, "item") else value
    if name == "reasons":
        return _reasons(value)
    if name == "status" and isinstance(value, int):
        return str(STATUS[value])
    if name in RESULTS and name != "status" and value and not isinstance(value, int | float):
        value = _number(name, value)
    return None if value in (-1, "") or value != value else value


def _number(name: str, text: Any) -> float:
    """Reads a number of a CSV file."""
    try:
        number = float(text)
    except (TypeError, ValueError):
        raise must_be("a number", text, field=name) from None
    return int(number) if number.is_integer() and "int" in RESULTS[name] else number


def _reasons(value: Any) -> tuple[Reason, ...]:
    """A bit set in NumPy, a list in Arrow, a text in CSV."""
    return Reason.of([reason_names(value) if isinstance(value, str) else value or []])[0]


def _lines(row: Mapping[str, Any], columns: Mapping[str, Any], inputs: Inputs | None) -> Iterator[str]:
    ids = (name for name in ("job", "cluster") if row.get(name) is not None)
    where = [f"{name} {printable(str(row[name]))}" for name in ids]
    where += [counted(row["world_size"], "GPU")] if row.get("world_size") else []
    yield f"{', '.join(where)}: {row['status']}"
    yield from _causes(row, "infeasible")
    yield from _infeasible(row, columns, inputs) if row["status"] == "infeasible" else _planned(row)
    cautions = list(_causes(row, "caution"))
    if cautions:
        yield "Warnings:"
        yield from cautions


def _causes(row: Mapping[str, Any], severity: str) -> Iterator[str]:
    for reason in row["reasons"]:
        if reason.severity == severity:
            yield f"  - {reason.text}" + (f" [{reason.source}]" if reason.source else "")


def _infeasible(row: Mapping[str, Any], columns: Mapping[str, Any], inputs: Inputs | None) -> Iterator[str]:
    gpus, batch = row.get("nearest_world_size"), row.get("nearest_batch")
    # A table does not say how many GPUs its clusters' nodes have: a usual node's.
    whole = [
        count <= NODE_GPUS or count % NODE_GPUS == 0 for count in (gpus or 0, row.get("world_size") or 0)
    ]
    ways = [counted(gpus, "GPU")] if gpus and (whole[0] or not whole[1]) else []
    ways += [f"a batch of {count(batch)}"] if batch else []
    if is_illegal(row["reasons"]):
        yield _what_is_illegal(row, inputs)
        return
    if ways:
        yield f"Nearest that works: {'; or '.join(ways)}"
        return
    alternatives = list(_others(row, columns))
    if alternatives:
        rest = len(alternatives) - _MAX_SHOWN_ROWS
        more = f", and {count(rest)} more" if rest > 0 else ""
        yield f"Other rows of this job that work: {'; '.join(alternatives[:_MAX_SHOWN_ROWS])}{more}"
        return
    if not _SOUGHT & set(row["reasons"]):
        # Of time, money, memory and what is not known, only the job's own plan says more.
        yield "Other GPU counts were not tried: use isobatch counts, or isobatch plan for all ways out."
    elif not {"nearest_world_size", "nearest_batch"} <= row.keys():
        yield "For what would work, plan again with --columns nearest_world_size,nearest_batch and your own."
    else:
        yield "Nothing nearby would work."


def _what_is_illegal(row: Mapping[str, Any], inputs: Inputs | None) -> str:
    if inputs is None:
        how = "pass the jobs that were planned (jobs=, --jobs FILE), or plan this job alone"
        return f"A value of the job or the cluster is illegal. To see which: {how}."
    if Reason.INVALID_ID in row["reasons"]:
        return "Give the row an id, in the column job, and plan it again."
    wrong = inputs.fault(row.get("job"), row.get("cluster"))
    if wrong is not None:
        return f"Illegal: {wrong}"
    how = "To check clusters of a separate table, pass clusters=, --clusters FILE."
    return f"No value of this job is illegal by itself. {how}"


def _others(row: Mapping[str, Any], columns: Mapping[str, Any]) -> Iterator[str]:
    """Lists the feasible rows of the same job, the fastest first."""
    if row.get("job") is None:
        return
    of_job = np.flatnonzero(np.asarray(columns["job"]) == row["job"])
    names = [name for name in ("status", "cluster", "world_size", "hours", "cost") if name in columns]
    rows = [{name: _value(name, columns[name][position]) for name in names} for position in of_job.tolist()]
    feasible = [option for option in rows if option["status"] != "infeasible"]
    for option in sorted(feasible, key=lambda option: option.get("hours") or float("inf")):
        gpus, cluster = option.get("world_size"), option.get("cluster")
        where = counted(gpus, "GPU") if gpus else "a row"
        where += "" if cluster is None else f" on cluster {printable(str(cluster))}"
        took = [duration(option["hours"] * 3600)] if option.get("hours") is not None else []
        took += [f"cost {price(option['cost'], '$')}"] if option.get("cost") is not None else []
        yield where + (f" ({', '.join(took)})" if took else "")


def _planned(row: Mapping[str, Any]) -> Iterator[str]:
    split = [row.get(name) for name in ("micro_batch", "accumulation", "data_parallel", "effective_batch")]
    if all(split):
        micro, accumulation, replicas, batch = map(count, split)  # type: ignore[arg-type]
        moved = row.get("batch_change") or 0.0
        change = f" ({percent(moved, signed=True)} of the tuned batch)" if moved else ""
        product = f"Micro-batch {micro} × accumulation {accumulation} × {replicas} replicas"
        yield f"{product}: {batch} samples per step{change}."
    if row.get("lr") is not None:
        scale = row.get("lr_scale") or 1.0
        tuned = f"{figure(scale)} × the tuned one" if scale != 1 else "as tuned"
        yield f"Learning rate {real(row['lr'])}, {tuned}."
    if row.get("total_steps"):
        warmup = f", {count(row['warmup_steps'])} of them warmup" if row.get("warmup_steps") else ""
        yield f"The run: {count(row['total_steps'])} steps{warmup}."
    yield from _spent(row)
    if row.get("memory_gib") is not None:
        yield f"Memory: {figure(row['memory_gib'])} GiB per GPU."


def _spent(row: Mapping[str, Any]) -> Iterator[str]:
    """Writes the hours, GPU-hours and cost of the row, each with its range."""
    hours, error = row.get("hours"), row.get("hours_error")
    share = error / hours if error and hours else None
    parts = [] if hours is None else [ranged(hours, error, lambda value: duration(value * 3600))]
    for name, form, write in (("gpu_hours", "{} GPU-hours", figure), ("cost", "cost {}", _price)):
        if (value := row.get(name)) is not None:
            parts.append(form.format(ranged(value, share and value * share, write)))
    if not parts:
        return
    notes = [] if share is None else [f"± {percent(share)}"]
    if share is None and "hours_error" in row:
        notes.append("no range known")
    if row.get("cost", 0.0) is None:
        notes.append("cost not known, as the cluster has no price_per_gpu_hour")
    yield "; ".join([f"It takes {', '.join(parts)}", *notes]) + "."


def _price(cost: float) -> str:
    return price(cost, "$")


# The illegal input of a row


class Inputs:
    """The tables behind a fleet's plans; without clusters a row has its own, or they are not looked at."""

    def __init__(self, jobs: Any, clusters: Any = None, *, decimal: str | None = None) -> None:
        self._jobs = input_table("job", jobs, decimal=decimal)
        self._own = clusters is None and bool({"nodes", "gpus_per_node"} & self._jobs.extra.keys())
        self._known = clusters is not None
        if self._own:
            self._jobs, self._clusters = own_clusters(self._jobs, decimal)
        else:
            # Any legal cluster shows what is wrong with a job.
            self._clusters = input_table("cluster", clusters if self._known else [1], decimal=decimal)

    def fault(self, job: Any, cluster: Any = None) -> str | None:
        """Names the illegal values of a row of the plans, and its place; None: all are legal."""
        sides, texts = self._sides(job, cluster)
        place = ", ".join(side.where(0) for side in sides)
        return f"{place}: {'; '.join(texts)}{decimal_hint(texts)}" if texts else None

    def faults(self, job: Any, cluster: Any = None) -> list[tuple[str, str]]:
        """Lists the illegal values of a row of the plans, each with the place of its job or cluster."""
        sides, texts = self._sides(job, cluster)
        faults = []
        for text in texts:
            field = text.split(" ", 1)[0]
            owners = [side for side in sides if side.cell(field, 0) is not None]
            owners = owners or [side for side in sides if field in _OWN_FIELDS[side.kind]] or sides
            faults.append((", ".join(side.where(0) for side in owners), text))
        return faults

    def _sides(self, job: Any, cluster: Any) -> tuple[list[InputTable], list[str]]:
        """Returns the rows of a job and, where it is known, its cluster, and their illegal values."""
        at = cluster_row = _row(self._jobs, job)
        if not self._own:
            cluster_row = _row(self._clusters, cluster) if self._known and cluster is not None else 0
        pair = self._jobs.row(at), self._clusters.row(cluster_row)
        texts = Fleet(*pair, settings_of({})._asdict(), None, ("status",)).row_faults(0)
        return [*pair] if self._known else [pair[0]], texts


def kinds_of_faults(faults: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Groups faults, each a place and a text, by kind of slip, the most frequent first: text, places."""
    kinds: dict[str, tuple[str, list[str]]] = {}
    for place, text in faults:
        legal, _, value = text.partition(", got ")
        kind = f"{legal} {re.sub(r'[0-9.]+', '0', value)}"
        kinds.setdefault(kind, (text, []))[1].append(place)
    return sorted(kinds.values(), key=lambda kind: -len(kind[1]))


def _row(table: InputTable, name: Any) -> int:
    kind, rows = table.kind, table.rows_by_id
    if name is None:
        raise InputError(f"the plans have no column {kind}: cannot tell which row is meant", field=kind)
    if str(name) not in rows:
        raise unknown(kind, str(name), rows, field=kind, file=table.file)
    return rows[str(name)]
