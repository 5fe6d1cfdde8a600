"""A batch ramp in words: its stages, the one that cannot be split, and a ramp that can."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from isobatch.planning.course import Stage
from isobatch.planning.planned import Planned
from isobatch.words import count, figure

MOST_SHOWN = 8
"""Stages that are listed one by one."""


def stage_lines(plan: Planned, stages: Sequence[Stage]) -> Iterator[str]:
    """The stages that a run whose batch grows has left: from which step on which batch, its split, and what the learning rate is of its peak."""
    if len(stages) < 2:
        return
    yield f"The batch grows in {count(len(stages))} stages:"
    lines = [_line(plan, stage) for stage in stages]
    if len(lines) > MOST_SHOWN:
        left_out = len(lines) - MOST_SHOWN + 1
        lines[MOST_SHOWN // 2 : len(lines) - MOST_SHOWN // 2 + 1] = [f"  … {count(left_out)} more …"]
    yield from lines


def _line(plan: Planned, stage: Stage) -> str:
    micro, _, replicas, _, irregular = plan.layout
    passes = math.ceil(stage.batch / (micro * replicas))
    micro = min(micro, math.ceil(stage.batch / replicas))
    split = f"{micro} × {passes} × {replicas}{', weighted' if irregular else ''}"
    scale = "" if stage.lr_scale == 1 else f", learning rate × {figure(stage.lr_scale)}"
    return f"  from step {count(stage.step)}: {count(stage.batch)} samples ({split}){scale}"


def refused_stage(plan: Planned, wanted: int) -> str | None:
    """Which stage of the ramp cannot be split, and a ramp of which all can; of a plan whose full batch was to be `wanted`."""
    recipe, settings, replicas = plan.recipe, plan.settings, plan.data_parallel
    if recipe.ramp is None or replicas is None:
        return None
    every, left = (recipe.core.stages(recipe.effective_batch, done) for done in (0, plan.consumed))
    unit = _unit(plan, replicas)
    for number, (tuned, *_) in enumerate(left, 1 + len(every) - len(left)):
        name = f"stage {count(number)} of {count(len(every))} of the ramp"
        batch, rest = divmod(tuned * wanted, recipe.effective_batch)
        if rest:
            return f"{name} would be {figure(tuned * wanted / recipe.effective_batch)} samples: a batch is a whole number of them"
        if batch % unit or batch < replicas * settings.min_micro_batch * settings.min_accumulation:
            return f"{name}, {count(batch)} samples, {_why(plan, batch, replicas)}{_instead(plan, unit)}"
    return None


def _unit(plan: Planned, replicas: int) -> int:
    """What every batch must be a multiple of."""
    settings = plan.settings
    demand = settings.fixed_micro_batch or (settings.micro_batch_multiple if settings.require_multiple else 1)
    return math.lcm(replicas * demand * settings.accumulation_multiple, settings.batch_multiple)


def _why(plan: Planned, batch: int, replicas: int) -> str:
    settings = plan.settings
    if batch % replicas:
        return f"cannot be split evenly over {count(replicas)} replicas"
    if batch % settings.batch_multiple:
        return f"is not a multiple of batch_multiple {count(settings.batch_multiple)}"
    per_replica = batch // replicas
    demands = [
        f"{name} {count(value)}"
        for name, value in (
            ("fixed_micro_batch", settings.fixed_micro_batch or 1),
            ("min_micro_batch", settings.min_micro_batch),
            ("micro_batch_multiple", settings.micro_batch_multiple if settings.require_multiple else 1),
            ("accumulation_multiple", settings.accumulation_multiple),
            ("min_accumulation", settings.min_accumulation),
        )
        if value > 1
    ]
    return f"is {count(per_replica)} for each of {count(replicas)} replicas, which has no split with {' and '.join(demands)}"


def _instead(plan: Planned, unit: int) -> str:
    """A ramp of which each stage is a multiple of `unit`, to be written in the recipe's place."""
    full, ramp = plan.recipe.effective_batch, plan.recipe.ramp or ""
    unit = math.lcm(unit, unit * plan.settings.min_accumulation)
    if full % unit or plan.settings.policy != "keep":
        return ""
    if ":" in ramp:
        pairs = [word.split(":") for word in ramp.replace(",", " ").split()]
        moved = " ".join(f"{at}:{min(full, _up(int(batch), unit))}" for at, batch in pairs)
    else:
        start, increment, samples = ramp.split()
        first = min(full, _up(int(start), unit))
        rise = (full - first) // unit
        steps = next((n for n in range(math.ceil(int(increment) / unit), rise + 1) if rise % n == 0), 1)
        moved = f"{first} {steps * unit} {samples}"
    return f'; ramp="{moved}" can'


def _up(number: int, unit: int) -> int:
    return math.ceil(number / unit) * unit
