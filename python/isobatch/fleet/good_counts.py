"""GPU counts of a job for a scheduler to choose from, or why there are none."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec
from numpy.typing import NDArray

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
        gpus_per_node: GPUs of a node; counts above it are whole nodes. None if one of the counts is not,
            as may be where neither nodes nor times were asked for.
        why: without any count the most frequent reason, by its name in docs/reasons.md: of the counts with a
            plan, if there are any, why they are left out; else of a refusal, or `not_whole_nodes`.
    """

    schema: Literal["isobatch.counts/1"] = SCHEMA
    gpus: list[int]
    best: int | None
    best_by: Literal["deadline", "knee", "fastest", "most"] | None
    effective_batch: int | None
    gpus_per_node: int | None
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
