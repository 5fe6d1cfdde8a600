"""Many schedules × many steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from isobatch._core import fill_schedules
from isobatch.errors import InputError, must_be
from isobatch.schedules.arguments import STEP_LIMIT
from isobatch.schedules.columns import from_columns
from isobatch.schedules.schedule import Schedule


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
            the columns of a fleet's table, `plan_fleet(..., columns=isobatch.schedules.COLUMNS)`: a mapping, or
            anything with `__arrow_c_stream__`, with `lr`, `total_steps`, `warmup_steps`, `schedule` (texts), `min_lr`
            and `warmup_lr`, and where the schedules have such lengths `effective_batch`, `tuned_batch` (samples in a
            step of the recipe), `steps_per_epoch`, `dataset_size` and `seq_len`. A column may be one value for all rows.
        steps: optimizer steps, a range or any array of numbers, of any order.
        dtype: float32 or float64; `out` brings its own.
        out: an array of shape (schedules, steps), C-contiguous and writable, to be filled and returned.

    Raises:
        InputError: before anything is written, when a step is NaN, negative, at or past 2^53 or past the end of a
            schedule that has one, a column is missing or looks misspelt, a row is infeasible, or `out` does not fit;
            on the way, when a value is too large for `dtype`. Rows are
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
        return from_columns(schedules)
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
