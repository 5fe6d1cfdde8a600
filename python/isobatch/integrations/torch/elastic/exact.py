"""A plan whose run is the same at every GPU count: nothing is padded, and an epoch is ⌈dataset / batch⌉ steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.state import Leg
from isobatch.planning.plan import Plan, plan
from isobatch.planning.replan import replan
from isobatch.planning.settings import Settings
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe


class Planned(NamedTuple):
    """How a step is laid out here (`plan`), and the run that it is a step of, which is that of one replica (`course`)."""

    plan: Plan
    course: Plan


def planned(recipe: Recipe, cluster: Cluster, settings: Settings, legs: Sequence[Leg], step: int) -> Planned:
    """The plan of a run that has done `step` steps, and goes on at a cluster.

    Raises:
        InputError: the recipe has no duration, or its trainer has no epochs; the legs cannot be.
    """
    if recipe.convention == "megatron":
        raise InputError(
            "convention must be one that counts epochs, got 'megatron': its own samplers resume by the samples"
        )
    if recipe.duration is None:
        raise InputError('duration is missing: add it to the recipe, such as "90ep"', field="duration")
    if recipe.ramp is not None or settings.policy == "goodput":
        raise InputError("a run whose batch ramps, or is chosen by goodput, cannot change its GPUs yet")
    here = plan(recipe, cluster, **settings._asdict())
    if here.status == "infeasible":
        return Planned(here, here)
    now = Leg(
        step, here.world_size, here.effective_batch or 0, {"policy": settings.policy, "rule": settings.rule}
    )
    course = _course(recipe, [*(leg for leg in legs if leg.step < step), now])
    size = recipe.dataset_size
    whole = (
        None
        if size is None or course.steps_per_epoch is None
        else min(size, course.steps_per_epoch * now.batch)
    )
    counted = {
        "total_steps": course.total_steps,
        "warmup_steps": course.warmup_steps,
        "steps_per_epoch": course.steps_per_epoch,
        "samples_per_epoch": whole,
        "padded_samples": None if size is None else 0,
        "dropped_samples": None if size is None or whole is None else size - whole,
        "moves": course.moves,
    }
    return Planned(msgspec.structs.replace(here, **counted), course)


def _course(recipe: Recipe, legs: Sequence[Leg]) -> Plan:
    """The run on one replica that makes whole steps, so that nothing depends on how they are split."""
    drops = bool(recipe.drop_last)
    alone = msgspec.structs.replace(
        recipe, convention="torch", even_batches=True, drop_last=drops, model_parallel=1
    )
    course: Plan | None = None
    for leg in legs:
        policy, rule = leg.settings.get("policy", "keep"), leg.settings.get("rule", "auto")
        # Under keep nothing but the batch moves, and that only within its tolerance.
        asked: dict[str, Any] = {"rule": "none" if policy == "keep" else rule, "max_micro_batch": leg.batch}
        if course is None:
            course = plan(alone, 1, policy=leg.batch, **asked)
        elif (course.effective_batch, course.settings.rule) != (leg.batch, asked["rule"]):
            course = replan(course, at_step=leg.step, effective_batch=leg.batch, **asked)
        course.require()
    assert course is not None
    return course
