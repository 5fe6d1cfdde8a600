"""Many schedules × many steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from isobatch._core import Schedule, fill_schedules
from isobatch.errors import InputError
from isobatch.schedules.form import STEP_LIMIT
from isobatch.schedules.text import Units, resolve

# The columns that a fleet's table gives a schedule: name → its value where the table has none.
_COLUMNS = {"schedule": "cosine", "min_lr": 0.0, "warmup_start": 0.0, "warmup_steps": 0}


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
            `steps_per_epoch`, `seq_len`, `effective_batch` and `tuned_batch` (what a step of the recipe holds; the
            effective batch where it is not given). A column may be one value for all rows.
        steps: optimizer steps, a range or any array of numbers, of any order.
        dtype: float32 or float64; `out` brings its own.
        out: an array of shape (schedules, steps), C-contiguous and writable, to be filled and returned.

    Raises:
        InputError: before anything is written, when a step is NaN, negative, at or past 2^53 or past the end of a
            schedule that has one, or `out` does not fit.

    >>> import isobatch as ib
    >>> jobs = [ib.schedules.cosine(1.0, 100), ib.schedules.linear(1.0, 200)]
    >>> ib.schedule_matrix(jobs, range(0, 101, 50)).tolist()
    [[1.0, 0.5, 0.0], [1.0, 0.75, 0.5]]
    """
    rows = _rows(schedules)
    columns, count = _steps(steps)
    shape = (len(rows), count)
    if out is None:
        kind = np.dtype(dtype)
        if kind not in (np.float32, np.float64):
            raise InputError(f"{kind} is neither float32 nor float64", field="dtype")
        # NumPy asks for huge pages, which matters more than anything else in filling fresh memory.
        out = np.empty(shape, kind)
    else:
        _check_out(out, shape)
    fill_schedules(rows, columns, out)
    return out


def _check_out(out: NDArray[Any], shape: tuple[int, int]) -> None:
    if not isinstance(out, np.ndarray):
        raise InputError(f"a {type(out).__name__} is no NumPy array", field="out")
    if out.dtype not in (np.float32, np.float64):
        raise InputError(f"{out.dtype} is neither float32 nor float64", field="out")
    if not out.dtype.isnative:
        raise InputError("its byte order is not this machine's", field="out")
    if out.shape != shape:
        raise InputError(f"its shape {out.shape} is not (schedules, steps) = {shape}", field="out")
    if not out.flags.c_contiguous:
        raise InputError(f"it must be C-contiguous; its strides are {out.strides}", field="out")
    if not out.flags.aligned:
        raise InputError("its memory is not aligned", field="out")
    if not out.flags.writeable:
        raise InputError("it is read-only", field="out")


def _steps(steps: range | ArrayLike) -> tuple[Any, int]:
    """A (start, step, count) triple where a range allows it, else a float64 array; and how many there are."""
    if isinstance(steps, range) and steps.step > 0:
        if len(steps) and (steps[0] < 0 or steps[-1] >= STEP_LIMIT):
            raise InputError(f"{steps} is not within 0 … 2^53 − 1", field="steps")
        return (float(steps.start), float(steps.step), len(steps)), len(steps)
    try:
        array = np.asarray(steps)
        if array.dtype.kind not in "iuf":
            raise TypeError
        array = np.ascontiguousarray(array, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("must be a range or an array of numbers", field="steps") from None
    if array.ndim != 1:
        raise InputError(f"must have one dimension, not {array.ndim}", field="steps")
    return array, len(array)


def _rows(schedules: Any) -> list[Schedule]:
    if isinstance(schedules, Schedule):
        return [schedules]
    if isinstance(schedules, Mapping) or hasattr(schedules, "__arrow_c_stream__"):
        return _from_columns(schedules)
    entries: list[Any] = list(schedules)
    if set(map(type, entries)) == {Schedule}:
        return entries
    rows = []
    for row, entry in enumerate(entries, 1):
        schedule = entry if isinstance(entry, Schedule) else getattr(entry, "schedule", None)
        if not isinstance(schedule, Schedule):
            raise InputError(
                f"a {type(entry).__name__} is neither a schedule nor a plan", row=row, field="schedules"
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
            raise InputError("the table has no such column", field=name)
    sized = [len(column) for column in table.values() if np.ndim(column)]
    count = max(sized, default=1)

    def column(name: str, missing: Any = None) -> list[Any]:
        values = table.get(name, missing)
        if not np.ndim(values):
            return [values] * count
        if len(values) != count:
            raise InputError(f"it has {len(values)} rows, not {count}", field=name)
        return values.tolist() if isinstance(values, np.ndarray) else list(values)

    read = {name: column(name, missing) for name, missing in _COLUMNS.items()}
    batch = column("effective_batch", 1)
    tuned = column("tuned_batch") if "tuned_batch" in table else batch
    known = zip(batch, tuned, column("steps_per_epoch"), column("seq_len"), strict=True)
    rows = []
    for row, (lr, total, unit, *rest) in enumerate(
        zip(column("lr"), column("total_steps"), known, *read.values(), strict=True), 1
    ):
        spec, min_lr, warmup_start, warmup_steps = rest
        try:
            rows.append(
                resolve(
                    spec,
                    peak=lr,
                    min_lr=min_lr,
                    warmup_start=warmup_start,
                    warmup_steps=warmup_steps,
                    total_steps=total,
                    units=Units(tuned_batch=unit[1], batch=unit[0], steps_per_epoch=unit[2], seq_len=unit[3]),
                )
            )
        except InputError as error:
            raise error.at(row=row) from None
    return rows
