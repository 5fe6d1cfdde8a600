"""What a trainer that owns the loop says of itself before the first step, against the plan."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from isobatch.diagnosis.causes import Cause
from isobatch.guard.run import Run
from isobatch.planning.plan import plan as make_plan

COUNTED = ("steps_per_epoch", "samples_per_epoch", "total_steps")


class Owner(NamedTuple):
    """A trainer: the convention by which it counts an epoch's end, and the optimizer steps that it will take, if it knows."""

    convention: Literal["transformers", "lightning"]
    total_steps: int | None = None


def check_convention(run: Run, owner: Owner) -> None:
    """The plan must count an epoch's end as the trainer does."""
    plan = run.plan
    if plan.recipe.convention == owner.convention or plan.moves:
        return
    recipe = msgspec.structs.replace(plan.recipe, convention=owner.convention)
    other = make_plan(recipe, plan.cluster, **plan.settings._asdict())
    differ = [name for name in COUNTED if getattr(plan, name) != getattr(other, name)]
    if differ:
        said = ", ".join(f"{name} {getattr(other, name)}, {getattr(plan, name)} planned" for name in differ)
        text = f"{owner.convention} counts {said} with convention={plan.recipe.convention!r}"
        run.stop(Cause.ANOTHER_CONVENTION.likely(f'convention="{owner.convention}"'), text)


def check_length(run: Run, owner: Owner) -> None:
    """The trainer must take the plan's steps. Asked after the first ones, since another micro-batch or accumulation makes another
    length, and is the better diagnosis."""
    planned, found = run.plan.total_steps, owner.total_steps
    if None not in (planned, found) and planned != found:
        text = f"the trainer will take {found:,} optimizer steps, {planned:,} planned"
        run.stop(Cause.ANOTHER_LENGTH, text)
