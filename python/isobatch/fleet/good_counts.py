"""GPU counts of a job for a scheduler to choose from, and comparisons of the counts of a job."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch.fleet.results import INFEASIBLE
from isobatch.reason import Reason

NOT_WHOLE_NODES = "not_whole_nodes"
"""Why there are no counts where none is a part of a node, or whole nodes."""

SCHEMA: Literal["isobatch.counts/1"] = "isobatch.counts/1"


class GoodCounts(msgspec.Struct, frozen=True, kw_only=True):
    """GPU counts for a scheduler to choose from.

    Attributes:
        schema: name and version of this form.
        gpus: the counts with a plan, in order; empty if there is none.
        best: one of them, by `best_by`; None if there is none.
        best_by: `deadline`: with the fewest GPU-hours of those that meet the deadline; `knee`: past it, one
            percent less time costs more than one percent more GPU-hours; `fastest`: with the fewest hours;
            `most`: the largest, since no hours are known. None without a best.
        effective_batch: samples in a step, the same at each of the counts; None if they differ.
        gpus_per_node: GPUs of a node; counts above it are whole nodes.
        why: without any count the most frequent reason, by its name in docs/reasons.md: of the counts with a
            plan, if there are any, why they are left out; else of a refusal, or `not_whole_nodes`.
    """

    schema: Literal["isobatch.counts/1"] = SCHEMA
    gpus: list[int]
    best: int | None
    best_by: Literal["deadline", "knee", "fastest", "most"] | None
    effective_batch: int | None
    gpus_per_node: int
    why: str | None = None

    @classmethod
    def none(cls, gpus_per_node: int) -> Self:
        """Returns the answer where no count is a part of a node, or whole nodes."""
        unknown: dict[str, Any] = dict.fromkeys(("best", "best_by", "effective_batch"))
        return cls(gpus=[], gpus_per_node=gpus_per_node, why=NOT_WHOLE_NODES, **unknown)


def why_none(columns: Mapping[str, NDArray[Any]]) -> str:
    """Returns the most frequent reason why no row of a job is good: the hours, if any row has a plan."""
    names = ("reasons", "data_parallel", "hours", "total_steps")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    micros = columns["best_micro_batch"].tolist() if "best_micro_batch" in columns else None
    refusals, omissions = Counter[Reason](), Counter[Reason]()
    for row, (reasons, replicas, hours, steps) in enumerate(rows):
        infeasible = [reason for reason in Reason.of(reasons) if reason.severity == "infeasible"]
        if micros[row] > 0 if micros else not infeasible:
            if hours == hours:
                omissions[Reason.MISSES_DEADLINE] += 1
            else:
                omissions[Reason.NEEDS_DURATION if steps == -1 else Reason.NEEDS_PROFILE] += 1
        else:
            refusals.update([Reason.ABOVE_MAX_BATCH] if micros and replicas > 0 else infeasible)
    ((reason, _),) = (omissions or refusals).most_common(1)
    return reason.value


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
