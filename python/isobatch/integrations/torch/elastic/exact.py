"""A plan whose run is the same at every GPU count: nothing is padded, and an epoch is ⌈dataset / batch⌉ steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.state import Leg
from isobatch.planning.plan import Plan, plan, plan_of
from isobatch.planning.replan import replan
from isobatch.planning.settings import DEFAULTS, HYPERPARAMETERS, Settings
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe


class Planned(NamedTuple):
    """How a step is laid out here (`plan`), and the run that it is a step of, which is that of one replica (`course`)."""

    plan: Plan
    course: Plan


def planned(recipe: Recipe, cluster: Cluster, settings: Settings, legs: Sequence[Leg], step: int) -> Planned:
    """The plan of a run that has done `step` steps, and goes on at a cluster.

    Raises:
        InputError: the recipe has no duration, its trainer has no epochs, or the policy is goodput; the legs cannot be.
    """
    _check(recipe, settings)
    recipe = msgspec.structs.replace(recipe, convention="exact", drop_last=bool(recipe.drop_last))
    before = [leg for leg in legs if leg.step < step]
    consumed = _course(recipe, before).position(step).samples if before and recipe.ramp is not None else 0
    here = plan_of(recipe, cluster, settings, None, consumed)
    if here.status == "infeasible":
        return Planned(here, here)
    now = Leg(step, here.world_size, here.effective_batch or 0, settings.changed())
    course = _course(recipe, [*before, now])
    names = ("total_steps", "warmup_steps", "warmup_lr", "moves")
    counted = {name: getattr(course, name) for name in names}
    if not course.moves:
        # It only says which stages need not be split any more; where it does not come of a move, the run starts behind it.
        counted["consumed"] = 0
    return Planned(msgspec.structs.replace(here, **counted), course)


def _check(recipe: Recipe, settings: Settings) -> None:
    if recipe.convention == "megatron":
        raise InputError(
            "convention must be one that counts epochs, got 'megatron': its own samplers resume by the samples, and isobatch replan --to megatron writes the arguments"
        )
    if recipe.duration is None:
        raise InputError('duration is missing: add it to the recipe, such as "90ep"', field="duration")
    if settings.policy == "goodput":
        raise InputError(
            "policy must be keep, grow or a batch, got 'goodput', which needs a profile, and picks another batch and another length at "
            "each number of GPUs: plan with it once, and give the batch that it picked, such as policy=512",
            field="policy",
        )


def _course(recipe: Recipe, legs: Sequence[Leg]) -> Plan:
    """The run on one replica that makes whole steps, so that nothing depends on how they are split."""
    alone = msgspec.structs.replace(recipe, even_batches=True, model_parallel=1)
    course: Plan | None = None
    for leg in legs:
        # Under keep nothing but the batch moves, and that only within its tolerance.
        keeps = leg.settings.get("policy", "keep") == "keep"
        asked: dict[str, Any] = {
            "rule": "none" if keeps else leg.settings.get("rule", "auto"),
            "ramp_rule": leg.settings.get("ramp_rule", "none"),
            **{name: leg.settings.get(name, getattr(DEFAULTS, name)) for name in HYPERPARAMETERS},
        }
        if course is None:
            course = plan(alone, 1, policy=leg.batch, max_micro_batch=leg.batch, **asked)
        elif (course.effective_batch, _of(course, asked)) != (leg.batch, asked):
            course = replan(
                course, at_step=leg.step, effective_batch=leg.batch, max_micro_batch=leg.batch, **asked
            )
        course.require()
    assert course is not None
    return course


def _of(course: Plan, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(course.settings, name) for name in names}
