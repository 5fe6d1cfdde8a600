"""What a move of a run that is under way makes of its plans: where the data goes on, and the figures of the whole run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from isobatch.planning.course import Course, rest_of_epoch
from isobatch.planning.planned import Planned

Legs: TypeAlias = Sequence[tuple[int, Planned]]
"""The parts of a run, in order: the optimizer step at which each starts, and its plan."""


class Moved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a move found the run, and what it means for the data and the optimizer."""

    step: int
    samples: int
    epoch: int | None
    offset: int | None
    repeated_samples: int
    skipped_samples: int
    velocity_factor: float


def moved_at(course: Course, after: Planned, step: int) -> Moved:
    """What a move after `step` optimizer steps of a run means, to the plan `after`."""
    running, here = course.legs[-1].plan, course.position(step)
    repeated = skipped = 0
    samples, epoch, offset = here.samples, here.epoch, here.offset
    dataset = running.recipe.dataset_size
    if dataset is not None and epoch is not None and offset:
        stayed, moved = (rest_of_epoch(plan, dataset, offset) for plan in (running, after))
        repeated, skipped = max(0, moved.padded - stayed.padded), max(0, moved.dropped - stayed.dropped)
        if not moved.steps:
            epoch, offset = epoch + 1, 0
            samples = epoch * dataset if course.by_epochs else samples
    factor = (after.lr or 0.0) / (running.lr or 1.0)
    return Moved(step, samples, epoch, offset, repeated, skipped, factor)


def whole_run(legs: Legs) -> dict[str, Any]:
    """The fields of the last leg's plan that are about the whole run, moves included."""
    course = Course(legs)
    first, last = legs[0][1], legs[-1][1]
    return {
        "total_steps": course.total_steps,
        "warmup_steps": course.warmup_steps,
        # The warmup started under the first plan; here, as everywhere, it moves with the peak.
        "warmup_lr": (first.warmup_lr or 0.0) * ((last.lr or 0.0) / (first.lr or 1.0)),
        **_costs(legs, course.total_steps),
    }


def _costs(legs: Legs, total_steps: int | None) -> dict[str, float | None]:
    """Hours, GPU-hours and cost of the whole run, each leg at its own pace; None where a leg's is not known."""
    hours = gpu_hours = cost = 0.0
    ends = [*(step for step, _ in legs[1:]), total_steps]
    for (start, leg), end in zip(legs, ends, strict=True):
        if end is None or leg.step_seconds is None:
            return dict.fromkeys(("hours", "gpu_hours", "cost"))
        took = (end - start) * leg.step_seconds / 3600
        hours += took
        gpu_hours += took * leg.world_size
        price = leg.cluster.price_per_gpu_hour
        cost += took * leg.world_size * (math.nan if price is None else price)
    return {"hours": hours, "gpu_hours": gpu_hours, "cost": None if math.isnan(cost) else cost}
