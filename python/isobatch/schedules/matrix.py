"""Many schedules × many steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from isobatch._core import fill_schedules
from isobatch.errors import InputError, missing, must_be
from isobatch.schedules.arguments import STEP_LIMIT
from isobatch.schedules.lengths import Units
from isobatch.schedules.resolve import resolve
from isobatch.schedules.schedule import Schedule

# The columns of a fleet's table that a schedule is made of: name → its value where the table has none.
_RUN = {"schedule": "cosine", "min_lr": 0.0, "warmup_start": 0.0, "warmup_steps": 0}
_UNITS = ("steps_per_epoch", "dataset_size", "seq_len")
_WORTH = ("batch", "tuned_batch", *_UNITS)


def schedule_matrix(
    schedules: Iterable[Any] | Mapping[str, Any] | Any,
    steps: range | ArrayLike,
    dtype: DTypeLike = np.float32,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The learning rates of many schedules at many steps: one row a schedule, one column a step.

    float32 values are within one float32 ulp of the schedule's peak of `Schedule.at`, float64 values within 8
    float64 ulp. A `range`, or an array that counts evenly in whole numbers, is fastest; then an array that never
    falls; then any other.

    Args:
        schedules: Schedules, or plans (anything with a `schedule` attribute), in any mix of kinds and lengths. Or
            the columns of a fleet's table: a mapping, or anything with `__arrow_c_stream__`, that has `lr` and
            `total_steps`, and may have `schedule` (texts), `min_lr`, `warmup_start`, `warmup_steps`,
            `steps_per_epoch`, `dataset_size`, `seq_len`, `effective_batch` and `tuned_batch` (what a step of the
            recipe has; the effective batch where it is not given). A column may be one value for all rows.
        steps: optimizer steps, a range or any array of numbers, of any order.
        dtype: float32 or float64; `out` brings its own.
        out: an array of shape (schedules, steps), C-contiguous and writable, to be filled and returned.

    Raises:
        InputError: before anything is written, when a step is NaN, negative, at or past 2^53 or past the end of a
            schedule that has one, or `out` does not fit; on the way, when a value is too large for `dtype`. Rows are
            counted from 1.
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
    fill_schedules(rows, columns, out)
    return out


def _check_out(out: NDArray[Any], shape: tuple[int, int]) -> None:
    if not isinstance(out, np.ndarray):
        raise InputError(f"out must be a NumPy array, got a {type(out).__name__}", field="out")
    if out.dtype not in (np.float32, np.float64):
        raise InputError(f"out must be float32 or float64, got {out.dtype}", field="out")
    if not out.dtype.isnative:
        raise InputError(f"out must have this machine's byte order, got {out.dtype.str}", field="out")
    if out.shape != shape:
        raise InputError(
            f"out must have the shape (schedules, steps) = {shape}, got {out.shape}", field="out"
        )
    if not out.flags.c_contiguous:
        raise InputError(f"out must be C-contiguous, got strides of {out.strides}", field="out")
    if not out.flags.aligned:
        raise InputError("out must be aligned to its values", field="out")
    if not out.flags.writeable:
        raise InputError("out must be writable", field="out")


def _steps(steps: range | ArrayLike) -> tuple[Any, int]:
    """A (start, step, count) triple where a range allows it, else a float64 array; and how many there are."""
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
            raise InputError(
                f"schedules must be schedules or plans, got a {type(entry).__name__}",
                row=row,
                field="schedules",
            )
        rows.append(schedule)
    return rows


def _from_columns(table: Any) -> list[Schedule]:
    """One schedule a row of a fleet's table."""
    if not isinstance(table, Mapping):
        import pyarrow as pa

        arrow = pa.table(table)
        table = {name: arrow[name].to_pylist() for name in arrow.column_names}
    for name in ("lr", "total_steps"):
        if name not in table:
            raise missing(name, "the table needs the columns lr and total_steps")
    count = max((len(column) for column in table.values() if np.ndim(column)), default=1)

    def column(name: str, missing: Any = None) -> list[Any]:
        values = table.get(name, missing)
        if not np.ndim(values):
            return [values] * count
        if len(values) != count:
            raise InputError(f"{name} must have one value or {count}, got {len(values)}", field=name)
        return values.tolist() if isinstance(values, np.ndarray) else list(values)

    runs = zip(*(column(name, missing) for name, missing in _RUN.items()), strict=True)
    batch = column("effective_batch", 1)
    tuned = column("tuned_batch") if "tuned_batch" in table else batch
    units = zip(batch, tuned, *(column(name) for name in _UNITS), strict=True)
    rows = []
    for row, (lr, total, run, unit) in enumerate(
        zip(column("lr"), column("total_steps"), runs, units, strict=True), 1
    ):
        spec, *rest = run
        try:
            rows.append(
                resolve(
                    spec,
                    peak=lr,
                    total_steps=total,
                    units=Units(
                        **{name: _known(name, value) for name, value in zip(_WORTH, unit, strict=True)}
                    ),
                    **dict(zip(list(_RUN)[1:], rest, strict=True)),
                )
            )
        except InputError as error:
            raise error.at(row=row) from None
    return rows


def _known(name: str, value: Any) -> Any:
    """A count of a plan; where NumPy has −1 or NaN, it is not known."""
    if value is None and name in _UNITS:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise must_be("a number above 0", value, field="effective_batch" if name == "batch" else name)
    return value if value > 0 or name not in _UNITS else None
