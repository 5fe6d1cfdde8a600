"""Many schedules × many steps, of schedules, plans or the columns of a fleet's table."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from isobatch import _core
from isobatch.errors import InputError, missing, must_be
from isobatch.schedules.form import STEP_LIMIT
from isobatch.schedules.schedule import Schedule
from isobatch.schedules.text import Length, Units, check_spec, resolve
from isobatch.words import nearest, shown


def schedule_matrix(
    schedules: Iterable[Any] | Mapping[str, Any] | Any,
    steps: range | ArrayLike,
    dtype: DTypeLike = np.float32,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Computes the learning rates of many schedules at many steps: one row a schedule, one column a step.

    float32 values are within one float32 ulp of the schedule's peak of `Schedule.at`, float64 values within 8
    float64 ulp. A `range`, or an array that counts evenly in whole numbers, is fastest; then an array that
    never falls; then any other.

    Args:
        schedules: Schedules, or plans (anything with a `schedule` attribute), in any mix of kinds and
            lengths. Or the columns of a fleet's table, `plan_fleet(..., columns=isobatch.schedules.COLUMNS)`:
            a mapping, or anything with `__arrow_c_stream__`, with `lr`, `total_steps`, `warmup_steps`,
            `schedule` (texts), `min_lr` and `warmup_lr`, and where the schedules have such lengths
            `effective_batch`, `tuned_batch` (samples in a step of the recipe), `steps_per_epoch`,
            `dataset_size` and `seq_len`. A column may be one value for all rows.
        steps: optimizer steps, a range or any array of numbers, of any order.
        dtype: float32 or float64; `out` brings its own.
        out: an array of shape (schedules, steps), C-contiguous and writable, to be filled and returned.

    Raises:
        InputError: before anything is written, when a step is NaN, negative, at or past 2^53 or past the end
            of a schedule that has one, a column is missing or looks misspelt, a row is infeasible, or `out`
            does not fit; on the way, when a value is too large for `dtype`. Rows are counted from 1.
        KeyboardInterrupt: within about 0.1 s of Ctrl-C; `out` is then written in part.

    >>> import isobatch as ib
    >>> jobs = [ib.schedules.cosine(1.0, 100), ib.schedules.linear(1.0, 200)]
    >>> ib.schedule_matrix(jobs, range(0, 101, 50)).tolist()
    [[1.0, 0.5, 0.0], [1.0, 0.75, 0.5]]
    """
    rows = _rows(schedules)
    columns, count = _steps(steps)
    shape = (len(rows), count)
    if out is None:
        kind = _kind(dtype)
        # NumPy asks for huge pages, which matters more than anything else in filling fresh memory.
        out = np.empty(shape, kind)
    else:
        _check_out(out, shape)
    _core.fill_schedules(rows, columns, out)
    return out


def _check_out(out: NDArray[Any], shape: tuple[int, int]) -> None:
    if not isinstance(out, np.ndarray):
        raise InputError(f"out must be a NumPy array, got a {type(out).__name__}", field="out")
    for good, legal in (
        (out.dtype in (np.float32, np.float64), f"be float32 or float64, got {out.dtype}"),
        (out.dtype.isnative, f"have this machine's byte order, got {out.dtype.str}"),
        (out.shape == shape, f"have the shape (schedules, steps) = {shape}, got {out.shape}"),
        (out.flags.c_contiguous, f"be C-contiguous, got strides of {out.strides}"),
        (out.flags.aligned, "be aligned to its values"),
        (out.flags.writeable, "be writable"),
    ):
        if not good:
            raise InputError(f"out must {legal}", field="out")


def _steps(steps: range | ArrayLike) -> tuple[Any, int]:
    """Returns the steps as (start, step, count) if a range allows it, else as float64, and their count."""
    if isinstance(steps, range) and steps.step > 0:
        if len(steps) and (steps[0] < 0 or steps[-1] >= STEP_LIMIT):
            raise InputError(f"steps must be numbers from 0 to below 2^53, got {steps}", field="steps")
        return (float(steps.start), float(steps.step), len(steps)), len(steps)
    try:
        array = np.asarray(steps)
        if array.dtype.kind not in "iuf":
            raise TypeError
        array = np.ascontiguousarray(array, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise must_be("a range or an array of numbers", steps, field="steps") from None
    if array.ndim != 1:
        raise InputError(f"steps must have one dimension, got {array.ndim}", field="steps")
    return array, len(array)


def _kind(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy parses a text as Python
        kind = None
    if kind not in (np.float32, np.float64):
        raise must_be("float32 or float64", dtype if kind is None else str(kind), field="dtype")
    return kind


def _rows(schedules: Any) -> list[Schedule]:
    if isinstance(schedules, Schedule):
        return [schedules]
    if isinstance(schedules, Mapping) or hasattr(schedules, "__arrow_c_stream__"):
        return _from_columns(schedules)
    if not isinstance(schedules, Iterable) or getattr(schedules, "ndim", 1) == 0:
        raise must_be("schedules, plans or the columns of a table", schedules, field="schedules")
    entries: list[Any] = list(schedules)
    if set(map(type, entries)) == {Schedule}:
        return entries
    rows = []
    for row, entry in enumerate(entries, 1):
        schedule = entry if isinstance(entry, Schedule) else getattr(entry, "schedule", None)
        if not isinstance(schedule, Schedule):
            says = f"schedules must be schedules or plans, got a {type(entry).__name__}"
            raise InputError(says, row=row, field="schedules")
        rows.append(schedule)
    return rows


# ---- the columns of a table: nothing is filled in, a missing one is an error ----

_REQUIRED = ("lr", "total_steps", "warmup_steps", "schedule", "min_lr", "warmup_lr")
_UNITS = ("steps_per_epoch", "dataset_size", "seq_len")

COLUMNS = (*_REQUIRED, "effective_batch", "tuned_batch", *_UNITS)
"""The columns of a fleet's table for `isobatch.schedule_matrix`: ask `plan_fleet` for them by `columns`."""

_FLEET_COLUMNS = frozenset(("job", "cluster", *(name for name, *_ in _core.results())))
_MIN_LIKENESS = 0.82
"""How alike two names must be, from 0 to 1, for one to count as a slip of the other."""


def _from_columns(source: Any) -> list[Schedule]:
    """Reads one schedule a row from a table: a mapping of columns, or anything with `__arrow_c_stream__`."""
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
            if job is not None:
                at = InputError(f"{at.message} (job {shown(job)})", row=row, field=at.field)
            raise at from None
    return rows


def _of_arrow(source: Any) -> dict[str, list[Any]]:
    import pyarrow as pa

    arrow = pa.table(source)
    read = [name for name in arrow.column_names if name in COLUMNS or name == "job"]
    # Of the others only the names are looked at.
    return {
        name: arrow[name].to_pylist() if name in read else [None] * len(arrow) for name in arrow.column_names
    }


def _refuse_names(names: list[str]) -> None:
    unread = [str(name) for name in names if name not in COLUMNS and name not in _FLEET_COLUMNS]
    absent = [name for name in COLUMNS if name not in names]
    for name_given in unread:
        if close := nearest(name_given, absent, _MIN_LIKENESS):
            why = f"the column {name_given!r} is not read: did you mean {close!r}?"
            raise InputError(why, field=name_given)
    for name in absent:
        if name in _REQUIRED:
            todo = (
                "a fleet's table has it where it is asked for, plan_fleet(..., "
                "columns=isobatch.schedules.COLUMNS); in a table of your own add it, such as one value for "
                "all rows"
            )
            raise missing(name, todo)


def _column(table: Mapping[str, Any], name: str, count: int) -> list[Any]:
    values: Any = table.get(name)
    if not np.ndim(values):
        return [values] * count
    if len(values) != count:
        raise InputError(f"{name} must have one value or {count}, got {len(values)}", field=name)
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _schedule(row: dict[str, Any], names: Collection[str]) -> Schedule:
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
        if why and name not in names:
            raise missing(name, f"the schedule has a length in {min(why)}")
    return resolve(
        spec,
        peak=row["lr"],
        min_lr=row["min_lr"],
        warmup_start=row["warmup_lr"],
        warmup_steps=row["warmup_steps"],
        total_steps=row["total_steps"],
        units=_units(row, names),
    )


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and value != value)


@lru_cache(maxsize=1024)
def _units_of(text: str) -> frozenset[str]:
    """Returns the units of a schedule's lengths."""
    values = check_spec(text).arguments.values()
    each = [item for value in values for item in (value if type(value) is tuple else (value,))]
    return frozenset(item.unit for item in each if isinstance(item, Length))


def _units(row: dict[str, Any], names: Collection[str]) -> Units:
    batch = _count("effective_batch", row["effective_batch"]) if "effective_batch" in names else 1
    tuned = _count("tuned_batch", row["tuned_batch"]) if "tuned_batch" in names else batch
    steps, dataset, tokens = (_count_or_none(name, row[name]) for name in _UNITS)
    if steps is None and dataset is not None and "effective_batch" in names:
        steps = dataset / batch  # a trainer without epochs: there `ep` is the dataset's samples
    return Units(tuned_batch=tuned, batch=batch, steps_per_epoch=steps, dataset_size=dataset, seq_len=tokens)


def _count(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise must_be("a number above 0", value, field=name)
    return value


def _count_or_none(name: str, value: Any) -> Any:
    """Returns a count of a plan; where NumPy has −1 or NaN, it is not known."""
    return None if value is None or not _count(name, value) > 0 else value
