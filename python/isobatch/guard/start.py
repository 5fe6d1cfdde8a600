"""Where in its plan a training starts: a run that was moved, or that goes on from a checkpoint."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from isobatch.diagnosis.causes import Cause
from isobatch.guard.run import Run
from isobatch.integrations.torch.lr import PlanLR

FURTHEST = 2**40  # steps of a plan without a duration


def settle(run: Run, optimizer: Any, given: int | None, place: tuple[int, int] | None) -> None:
    """Sets the plan's step at which this training starts: the one given, else where the optimizer's PlanLR is, else where
    the loader's PlanSampler began, else the plan's last move. The sampler must have begun where the plan is at that step.

    Args:
        place: (epoch, offset) at which a PlanSampler began; None where there is none.
    """
    if run.plan.recipe.dataset_size is None:
        place = None  # the plan knows no epochs
    scheduler = PlanLR.of(optimizer)
    if given is not None:
        run.start = given
    elif scheduler is not None:
        position = scheduler.position
        run.start = int(position) if position.denominator == 1 else position
    elif place is not None:
        run.start = _step_at(run, place)
    if place is None or run.plan.recipe.ramp is not None or not isinstance(run.start, int):
        return
    here = run.plan.position(int(run.start))
    if (here.epoch, here.offset) != place:
        text = f"the sampler begins in epoch {place[0]} behind sample {place[1]}; planned: epoch {here.epoch}, {here.offset}"
        run.stop(Cause.ANOTHER_PLACE, text)


def _step_at(run: Run, place: tuple[int, int]) -> int:
    """The first step, from the last move on, that is as far in the data."""
    plan = run.plan
    steps = range(int(run.start), FURTHEST if plan.total_steps is None else plan.total_steps + 1)

    def where(step: int) -> tuple[int, int]:
        here = plan.position(step)
        return here.epoch or 0, here.offset or 0

    return steps[min(bisect_left(steps, place, key=where), len(steps) - 1)]
