"""The knee: the GPU count of a job past which more GPUs cost more than they save."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isobatch.report.page import Headline
from isobatch.report.plans import Plans
from isobatch.words import counted, printable

MOST_TYPES = 4
"""GPU types of which each has its own knee on a page."""


def gpus_of(plans: Plans) -> NDArray[np.float64]:
    """The GPU count of each row."""
    return plans.numbers["gpus"] if "gpus" in plans.numbers else plans.number("world_size")


def knees(plans: Plans) -> dict[tuple[int, int], int]:
    """The row at which hours × GPU-hours is least: past it, 1 % less time costs more than 1 % more GPU-hours.

    By job and GPU type: an hour of one type is no hour of another. A job that runs on one number of GPUs only has no knee.
    """
    _, job = plans.text("job")
    types, kind = plans.gpu_types()
    gpus = gpus_of(plans)
    with np.errstate(over="ignore"):
        product = plans.spent("hours") * plans.spent("gpu_hours")
    rows = np.flatnonzero(~np.isnan(product))
    group = job[rows] * len(types) + kind[rows]
    order = np.lexsort((product[rows], group))
    rows, group = rows[order], group[order]
    if not len(rows):
        return {}
    _, first = np.unique(group, return_index=True)
    several = np.minimum.reduceat(gpus[rows], first) < np.maximum.reduceat(gpus[rows], first)
    best = rows[first[several]]
    return {(int(job[row]), int(kind[row])): int(row) for row in best.tolist()}


def knee_of(plans: Plans) -> list[Headline]:
    """The knee of a single job, or of the middle one of several, on each GPU type; none where there are many types."""
    types, _ = plans.gpu_types()
    by_type: dict[int, list[float]] = {}
    gpus = gpus_of(plans)
    for (_, kind), row in knees(plans).items():
        by_type.setdefault(kind, []).append(float(gpus[row]))
    if len(by_type) > MOST_TYPES:
        return []
    found = []
    for kind, counts in sorted(by_type.items()):
        middle = sorted(counts)[len(counts) // 2]
        note = "past it, more GPUs cost more than they save" + ("; the middle job" if len(counts) > 1 else "")
        label = f"knee on {printable(types[kind], 30)}" if types[kind] else "knee"
        found.append(Headline(label, counted(middle, "GPU"), note))
    return found
