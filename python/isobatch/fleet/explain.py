"""A row of a fleet's plans in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.errors import InputError, must_be
from isobatch.fleet.results import RESULTS, STATUS
from isobatch.reason import Reason, reason_names, reasons_of
from isobatch.words import count, counted, duration, figure, percent, printable, real


def explain(table: Any, row: int) -> str:
    """What a row of a fleet's plans says: how to train there, or why not and what is nearest, with each warning's source.

    A table has results and no recipe: for the formulas, plan the row alone (`ib.plan`).

    Args:
        table: what `plan_fleet` gave, or a file of it was read into: a dict of arrays, or any Arrow table.
        row: counted from 0.

    Raises:
        InputError: there is no such row, or the table is no fleet's.

    >>> from isobatch.fleet.plan_fleet import plan_fleet
    >>> from isobatch.recipes.recipe import Recipe
    >>> print(explain(plan_fleet([Recipe(effective_batch=256, lr=0.1)], [8, 3]), 1))
    job 0, cluster 1, 3 GPUs: infeasible
      - the effective batch cannot be split evenly over the replicas; see nearest_world_size and nearest_batch, or allow batch_tolerance or ragged
    Nearest that works: 2 GPUs; or a batch of 255
    """
    values = _row(table, row)
    return "\n".join(_lines(values))


def _row(table: Any, row: int) -> dict[str, Any]:
    """The row's values; what is not known is None."""
    if type(row) is not int:
        raise must_be("a whole number from 0", row, field="row")
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
    if not 0 <= row < length:
        raise InputError(f"row must be from 0 to {length - 1:,}, got {row:,}", field="row")
    if missing := [name for name in ("status", "reasons") if name not in columns]:
        raise InputError(f"the table has no column {missing[0]!r}: it is no fleet's plans", field="table")
    return {name: _value(name, values[row]) for name, values in columns.items()}


def _value(name: str, value: Any) -> Any:
    """A value as Python has it, whatever the table."""
    value = value.as_py() if hasattr(value, "as_py") else value.item() if hasattr(value, "item") else value
    if name == "reasons":
        return _reasons(value)
    if name == "status" and isinstance(value, int):
        return str(STATUS[value])
    if isinstance(value, str) and name in RESULTS and name != "status" and value:
        value = _number(name, value)
    return None if value in (-1, "") or value != value else value


def _number(name: str, text: str) -> float:
    """A number of a CSV file, whose columns are texts."""
    try:
        number = float(text)
    except ValueError:
        raise must_be("a number", text, field=name) from None
    return int(number) if number.is_integer() and "int" in RESULTS[name] else number


def _reasons(value: Any) -> tuple[Reason, ...]:
    """A bit set in NumPy, a list in Arrow, a text in CSV."""
    if isinstance(value, int):
        return reasons_of(value)
    names = reason_names(value) if isinstance(value, str) else value or []
    try:
        return tuple(Reason(name) for name in names)
    except (TypeError, ValueError):
        raise must_be("names of reasons, as a fleet's table has them", value, field="reasons") from None


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    where = [
        f"{name} {printable(str(row[name]))}" for name in ("job", "cluster") if row.get(name) is not None
    ]
    gpus = row.get("world_size")
    yield f"{', '.join([*where, *([counted(gpus, 'GPU')] if gpus else [])])}: {row['status']}"
    yield from _causes(row, "infeasible")
    yield from _infeasible(row) if row["status"] == "infeasible" else _planned(row)
    cautions = list(_causes(row, "caution"))
    if cautions:
        yield "Warnings:"
        yield from cautions


def _causes(row: Mapping[str, Any], severity: str) -> Iterator[str]:
    for reason in row["reasons"]:
        if reason.severity == severity:
            yield f"  - {reason.text}" + (f" [{reason.source}]" if reason.source else "")


def _infeasible(row: Mapping[str, Any]) -> Iterator[str]:
    gpus, batch = row.get("nearest_world_size"), row.get("nearest_batch")
    ways = [_gpus(gpus, row)] if gpus else []
    ways += [f"a batch of {count(batch)}"] if batch else []
    if ways:
        yield f"Nearest that works: {'; or '.join(ways)}"
    elif any(reason.startswith("invalid_") for reason in row["reasons"]):
        yield "Correct the values that went in, and plan the row again; `isobatch fleet` names the first of them."
    elif not {"nearest_world_size", "nearest_batch"} <= row.keys():
        yield "What would work is in the columns nearest_world_size and nearest_batch, which this table lacks."
    else:
        yield "Nothing close to it would work."


_NODE = 8
"""GPUs of a usual node: a table does not say how many its clusters' nodes have."""


def _gpus(nearest: int, row: Mapping[str, Any]) -> str:
    """The nearest count that works; whether it could be had where the row's is made of nodes."""
    here = row.get("world_size") or 0
    broken = here > _NODE and here % _NODE == 0 and nearest % _NODE
    return counted(nearest, "GPU") + (f" (no whole nodes of {_NODE})" if broken else "")


def _planned(row: Mapping[str, Any]) -> Iterator[str]:
    split = [row.get(name) for name in ("micro_batch", "accumulation", "data_parallel", "effective_batch")]
    if all(split):
        micro, accumulation, replicas, batch = map(count, split)  # type: ignore[arg-type]
        moved = row.get("batch_change") or 0.0
        change = f" ({percent(moved, signed=True)} of the tuned batch)" if moved else ""
        yield f"Micro-batch {micro} × accumulation {accumulation} × {replicas} replicas: {batch} samples per step{change}."
    if row.get("lr") is not None:
        scale = row.get("lr_scale") or 1.0
        yield f"Learning rate {real(row['lr'])}" + (
            f", {figure(scale)} × the tuned one." if scale != 1 else ", as tuned."
        )
    if row.get("total_steps"):
        warmup = f", {count(row['warmup_steps'])} of them warmup" if row.get("warmup_steps") else ""
        yield f"The run: {count(row['total_steps'])} steps{warmup}."
    if row.get("hours") is not None:
        cost = f", cost {figure(row['cost'])}" if row.get("cost") is not None else ""
        work = f", {figure(row['gpu_hours'])} GPU-hours" if row.get("gpu_hours") is not None else ""
        yield f"It takes {duration(row['hours'] * 3600)}{work}{cost}."
    if row.get("memory_gib") is not None:
        yield f"Memory: {figure(row['memory_gib'])} GiB per GPU."
