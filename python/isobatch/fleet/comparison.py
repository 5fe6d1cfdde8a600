"""Comparisons of a job's rows: time against work, growing batches, and ends beyond which nothing is known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.fleet.results import INFEASIBLE
from isobatch.reason import Reason


def compared(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Returns hours × GPU-hours of a job's rows, to the same loss, up to a common factor; or NaN."""
    # The factors keep the product from overflow, and from 0 everywhere.
    spent = (columns[name] for name in ("hours", "gpu_hours"))
    hours, work = (values / (np.nanmax(values, initial=0.0) or 1.0) for values in spent)
    product: NDArray[np.float64] = hours * work
    if not grows_here(columns):
        return product
    product *= columns.get("samples_over_least", np.full(len(hours), np.nan)) ** 2
    return product


def grows_here(columns: Mapping[str, NDArray[Any]]) -> bool:
    """Tells whether the rows with hours of one job grow, as `grows` does."""
    known = ~np.isnan(columns["hours"])
    batch, steps = (columns[name][known].astype(float) for name in ("effective_batch", "total_steps"))
    return bool(known.any() and grows(batch, steps, np.zeros(1, np.int64))[0])


def grows(
    batch: NDArray[np.float64], steps: NDArray[np.float64], starts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tells for each job, by its first row in `starts`, if its rows train the same samples in other batches.

    Under policy grow they do, and reach different losses unless the rule holds the loss by more steps.
    """
    samples = batch * steps
    is_spread = np.maximum.reduceat(batch, starts) > 1.5 * np.minimum.reduceat(batch, starts)
    is_same = np.maximum.reduceat(samples, starts) < 1.05 * np.minimum.reduceat(samples, starts)
    return is_spread & is_same


def end_of(gpus: NDArray[Any], hours: NDArray[np.float64], reasons: NDArray[np.uint64], best: int) -> str:
    """Says why a job's best row may not be the best: no count beyond it has hours; else empty."""
    known = ~np.isnan(hours)
    notes = [
        _beyond(side, reasons[beyond])
        for side, beyond in (("fewer", gpus < gpus[best]), ("more", gpus > gpus[best]))
        if not (beyond & known).any() and not (side == "fewer" and gpus[best] == 1)
    ]
    return "; ".join(notes) if len(gpus) > 1 else ""


def _beyond(side: str, reasons: NDArray[np.uint64]) -> str:
    """Says why no count on one side has hours, by the reasons of these counts."""

    def has(*any_of: Reason) -> bool:
        return bool((reasons & np.uint64(sum(1 << reason.bit for reason in any_of))).any())

    if not len(reasons):
        return f"an end of the range: {side} GPUs may be better"
    if has(Reason.NEEDS_PROFILE) or not (reasons & INFEASIBLE).all():
        return f"the hours of {side} GPUs are not known"
    if has(Reason.ABOVE_BUDGET, Reason.MISSES_DEADLINE):
        return f"{side} GPUs are beyond the given limits"
    if side == "more" and has(Reason.NOT_DIVISIBLE):
        return "the most that can split the batch"
    return f"{side} GPUs have no plan"
