"""The learning rate of a plan, as far as a tool's own schedulers need to know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from isobatch.errors import InputError, missing
from isobatch.schedules import Units, check_spec
from isobatch.schedules.text import Length
from isobatch.tools.writing.planned import Planned
from isobatch.words import percent


class Curve(NamedTuple):
    """A schedule's kind and its lengths in the plan's steps. `kind` is None for a `Schedule` that is no text."""

    kind: str | None
    peak: float
    bottom: float
    first: float
    warmup: int
    total: int
    lengths: Mapping[str, int]
    numbers: Mapping[str, float]
    words: Mapping[str, str]

    @property
    def decay(self) -> int:
        """Steps after the warmup."""
        return max(0, self.total - self.warmup)


def curve(plan: Planned) -> Curve:
    """The plan's curve.

    Raises:
        InputError: the plan has no end, so that no tool could be given its steps.
    """
    if plan.total_steps is None or plan.lr is None:
        raise InputError(
            "the recipe has no duration, so the number of steps is unknown: give one", field="duration"
        )
    text = plan.recipe.schedule
    if text is None:
        raise missing("schedule", "the plans' table does not have it; name the jobs' with --jobs")
    base = (plan.lr, plan.min_lr or 0.0, plan.warmup_lr or 0.0, plan.warmup_steps or 0, plan.total_steps)
    if not isinstance(text, str):
        return Curve(None, *base, {}, {}, {})
    spec = check_spec(text)
    units = Units(
        tuned_batch=plan.recipe.effective_batch,
        batch=plan.effective_batch or plan.recipe.effective_batch,
        steps_per_epoch=plan.steps_per_epoch,
        seq_len=plan.recipe.seq_len,
    )
    total, given = plan.total_steps, spec.arguments
    return Curve(
        spec.kind,
        *base,
        {
            name: max(1, value.steps(units, total))
            for name, value in given.items()
            if isinstance(value, Length)
        },
        {name: value for name, value in given.items() if isinstance(value, float)},
        {name: value for name, value in given.items() if isinstance(value, str)},
    )


def differs(plan: Planned, theirs: Callable[[int], float]) -> str | None:
    """By how much a tool's own schedule misses the plan's, in words; None where they are the same.

    Both are evaluated at a few hundred steps of the run, the ends of the warmup and of the run among them; of a run that moved at
    those that are left.
    """
    moves = getattr(plan, "moves", ())
    first = moves[-1].step if moves else 0
    total, warmup = plan.total_steps or 1, plan.warmup_steps or 0
    spread = {total * part // 257 for part in range(257)}
    steps = sorted(
        step
        for step in spread | {at + by for at in (first, warmup, total - 1) for by in (-1, 0, 1)}
        if first <= step < total
    )
    ours = [plan.lr_at(step) for step in steps]
    worst, step = max((abs(a - theirs(step)), step) for a, step in zip(ours, steps, strict=True))
    if worst <= 1e-9 * max(ours):
        return None
    return f"differs from the plan by up to {percent(worst / max(ours))} of the peak (at step {step:,})"
