"""From the columns of a fleet's table to schedules, one a row. Nothing is filled in: what is missing is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from isobatch import _core
from isobatch.errors import InputError, missing, must_be
from isobatch.schedules.lengths import Length, Units
from isobatch.schedules.resolve import resolve
from isobatch.schedules.schedule import Schedule
from isobatch.schedules.text import check_spec
from isobatch.words import nearest, shown

_NEEDED = ("lr", "total_steps", "warmup_steps", "schedule", "min_lr", "warmup_lr")
_UNITS = ("steps_per_epoch", "dataset_size", "seq_len")

COLUMNS = (*_NEEDED, "effective_batch", "tuned_batch", *_UNITS)
"""The columns of a fleet's table that `isobatch.schedule_matrix` reads: ask `plan_fleet` for them by `columns`."""

_OF_FLEETS = frozenset(("job", "cluster", *(name for name, *_ in _core.results())))
_CLOSE = 0.82
"""How alike two names must be, from 0 to 1, for one to be taken for a slip of the other."""


def from_columns(source: Any) -> list[Schedule]:
    """One schedule a row of a table: a mapping of columns, or anything with `__arrow_c_stream__`.

    Raises:
        InputError: a column that is needed is missing or looks misspelt; a row is infeasible, or has no end.
    """
    table = source if isinstance(source, Mapping) else _of_arrow(source)
    _refuse_names(list(table))
    count = max((len(column) for column in table.values() if np.ndim(column)), default=1)
    columns = {name: _column(table, name, count) for name in COLUMNS}
    jobs = _column(table, "job", count)
    rows = []
    for row, (job, values) in enumerate(zip(jobs, zip(*columns.values(), strict=True), strict=True), 1):
        try:
            rows.append(_schedule(dict(zip(columns, values, strict=True)), table.keys()))
        except InputError as error:
            at = error.at(row=row)
            raise (
                at if job is None else InputError(f"{at.message} (job {shown(job)})", row=row, field=at.field)
            ) from None
    return rows


def _of_arrow(source: Any) -> dict[str, list[Any]]:
    import pyarrow as pa

    arrow = pa.table(source)
    taken = [name for name in arrow.column_names if name in COLUMNS or name == "job"]
    # Of the others only the names are looked at.
    return {
        name: arrow[name].to_pylist() if name in taken else [None] * len(arrow) for name in arrow.column_names
    }


def _refuse_names(names: list[str]) -> None:
    others = [str(name) for name in names if name not in COLUMNS and name not in _OF_FLEETS]
    absent = [name for name in COLUMNS if name not in names]
    for other in others:
        if close := nearest(other, absent, _CLOSE):
            raise InputError(f"the column {other!r} is not read: did you mean {close!r}?", field=other)
    for name in absent:
        if name in _NEEDED:
            raise missing(
                name,
                "a fleet's table has it where it is asked for, plan_fleet(..., columns=isobatch.schedules.COLUMNS); "
                "in a table of your own add it, such as one value for all rows",
            )


def _column(table: Mapping[str, Any], name: str, count: int) -> list[Any]:
    values: Any = table.get(name)
    if not np.ndim(values):
        return [values] * count
    if len(values) != count:
        raise InputError(f"{name} must have one value or {count}, got {len(values)}", field=name)
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _schedule(row: dict[str, Any], given: Collection[str]) -> Schedule:
    if _is_unknown(row["lr"]):
        raise InputError("lr is not known: the row is infeasible, leave such rows out", field="lr")
    if _is_unknown(row["total_steps"]) or row["total_steps"] == -1:
        raise InputError("total_steps is not known: the job needs a duration", field="total_steps")
    spec = row["schedule"]
    if _is_unknown(spec) or spec == "":
        raise InputError(
            "schedule is not known, as of a job with a ramp: give schedule_matrix its plan (isobatch.plan)",
            field="schedule",
        )
    units = _units_of(spec) if isinstance(spec, str) else frozenset({"st"})
    for name, why in (("effective_batch", units - {"ep", "%"}), ("tuned_batch", units & {"st"})):
        if why and name not in given:
            raise missing(name, f"the schedule has a length in {min(why)}")
    return resolve(
        spec,
        peak=row["lr"],
        min_lr=row["min_lr"],
        warmup_start=row["warmup_lr"],
        warmup_steps=row["warmup_steps"],
        total_steps=row["total_steps"],
        units=_units(row, given),
    )


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and value != value)


@lru_cache(maxsize=1024)
def _units_of(text: str) -> frozenset[str]:
    """The units of a schedule's lengths."""
    values = check_spec(text).arguments.values()
    each = [item for value in values for item in (value if type(value) is tuple else (value,))]
    return frozenset(item.unit for item in each if isinstance(item, Length))


def _units(row: dict[str, Any], given: Collection[str]) -> Units:
    batch = _count("effective_batch", row["effective_batch"]) if "effective_batch" in given else 1
    tuned = _count("tuned_batch", row["tuned_batch"]) if "tuned_batch" in given else batch
    steps, dataset, tokens = (_count_or_none(name, row[name]) for name in _UNITS)
    if steps is None and dataset is not None and "effective_batch" in given:
        steps = dataset / batch  # a trainer without epochs: there `ep` is the dataset's samples
    return Units(tuned_batch=tuned, batch=batch, steps_per_epoch=steps, dataset_size=dataset, seq_len=tokens)


def _count(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise must_be("a number above 0", value, field=name)
    return value


def _count_or_none(name: str, value: Any) -> Any:
    """A count of a plan; where NumPy has −1 or NaN, it is not known."""
    return None if value is None or not _count(name, value) > 0 else value
