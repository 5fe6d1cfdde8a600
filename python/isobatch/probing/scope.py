"""What a probe compares: the batches, the plan of each, and where each search begins. No torch."""

from __future__ import annotations

from functools import cache

import msgspec

from isobatch.errors import InputError
from isobatch.planning.plan import Plan, plan
from isobatch.planning.settings import HYPERPARAMETERS
from isobatch.probing.options import ProbeOptions
from isobatch.recipes.recipe import Recipe

START_LR = {
    "sgd": 0.1,
    "adam": 3e-3,
    "adamw": 3e-3,
    "rmsprop": 1e-3,
    "lion": 3e-4,
    "muon": 2e-2,
    "adafactor": 1e-2,
}
"""Where the built-in workload's search begins for each optimizer: the recipe's learning rate was tuned for another model."""

_SPLIT = ("gpus", "micro_batch", "accumulation", "model_parallel", "device_batches", "ramp")
"""What a recipe says of the hardware; a trial has its own."""


class Scope:
    """The plans and learning rates of a probe.

    Args:
        plan: feasible.
        options: how to probe.
        stand_in: whether the built-in workload is trained.
    """

    def __init__(self, plan: Plan, options: ProbeOptions, *, stand_in: bool) -> None:
        self.plan, self.options, self.stand_in = plan, options, stand_in
        self.tuned_batch = tuned_batch(plan)
        self.batches = batches_of(plan, options)
        self.plan_of = cache(self._plan_of)

    @property
    def start_lr(self) -> float:
        """Where the search at the tuned batch begins."""
        if not self.stand_in:
            return self.plan_of(self.tuned_batch).require().lr
        name = self.plan.recipe.optimizer
        if name not in START_LR:
            raise InputError(
                f"the built-in workload has no {name}: give your own training as package.module:factory",
                field="workload",
            )
        return START_LR[name]

    @property
    def run_samples(self) -> int | None:
        """The samples of the whole planned run, where it has an end."""
        steps, batch = self.plan.total_steps, self.plan.effective_batch
        return None if steps is None or batch is None else steps * batch

    def scale(self, batch: int) -> float:
        """What the rule multiplies the tuned batch's learning rate by."""
        return self.plan_of(batch).require().lr / self.plan_of(self.tuned_batch).require().lr

    def _plan_of(self, batch: int) -> Plan:
        """The recipe planned at a batch by the plan's rule: its optimizer's values, and not its split."""
        if batch == self.plan.effective_batch:
            return self.plan
        recipe = self.plan.recipe
        fields = {name: value for name, value in msgspec.structs.asdict(recipe).items() if name not in _SPLIT}
        settings = {name: getattr(self.plan.settings, name) for name in ("rule", *HYPERPARAMETERS)}
        found: Plan = plan(Recipe(**fields), 1, policy=batch, **settings)
        if found.status == "infeasible":
            raise InputError(f"batch {batch:,} cannot be planned: {found.explain()}", field="batches")
        return found


def tuned_batch(plan: Plan) -> int:
    """The batch that was tuned; the planned one where that is within a tenth of it."""
    planned, tuned = plan.require().effective_batch, plan.recipe.effective_batch
    return planned if 0.9 < planned / tuned < 1.1 else tuned


def batches_of(plan: Plan, options: ProbeOptions) -> list[int]:
    """The batches to measure, the tuned one first."""
    first = tuned_batch(plan)
    others = {plan.require().effective_batch, *options.batches} - {first}
    return [first, *sorted(others)]
