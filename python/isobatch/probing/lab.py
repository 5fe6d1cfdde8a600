"""Where trials are made: the workload, the processes, the plans of each batch, the clock and the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np

from isobatch.errors import InputError
from isobatch.planning.plan import Plan, plan
from isobatch.probing.options import ProbeOptions
from isobatch.probing.ranks import Ranks
from isobatch.probing.stand_in import START_LR, stand_in
from isobatch.probing.stream import check_reseeding
from isobatch.probing.training import (
    Course,
    Make,
    Share,
    Training,
    even,
    own_randomness,
    read_checkpoint,
    run,
    seconds_of_step,
    seed_all,
    shape_of,
    shares,
)
from isobatch.probing.trials import Journal, Trial
from isobatch.recipes.recipe import Recipe
from isobatch.validate.ranks.group import Group
from isobatch.validate.step.trying import user_code
from isobatch.validate.step.workload import Workload, factory_of, made

MOST_BLOCK = 64
PART = 32
"""Evaluation samples in a part, at most."""
STAND_IN_MICRO = 4096


class Lab:
    """Trains a plan's workload at any batch, learning rate and seed.

    Args:
        plan: feasible.
        options: how to probe.
        ranks: the processes.
        factory: makes the workload; None: as the options name it.
        journal: keeps the trials.
        clock: seconds; the budget counts from now.

    Raises:
        InputError: the workload cannot be made, cannot be reseeded, or its loss is not finite from the start.
    """

    def __init__(
        self,
        plan: Plan,
        options: ProbeOptions,
        ranks: Ranks | Group,
        *,
        factory: Callable[[], Any] | None = None,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.options, self.ranks, self.clock = plan, options, ranks, clock
        self._begun = clock()
        self.journal = journal if journal is not None else Journal(None, "")
        self.stand_in = factory is None and options.workload is None
        self.make = maker(factory, options.workload)
        self.checkpoint = (
            None if options.checkpoint is None else read_checkpoint(options.checkpoint, ranks.device)
        )
        made_plan = plan.require()
        self.micro = STAND_IN_MICRO if self.stand_in else made_plan.micro_batch
        self.tuned_batch = tuned_batch(plan)
        self.block = max(1, min(MOST_BLOCK, self.tuned_batch))
        self.part = max(1, min(PART, self.micro))
        self.plan_of = cache(self._plan_of)
        with own_randomness():
            check_reseeding(lambda seed: self.make(seed, plan), ranks.device)
        self.first_losses = cache(self._first_losses)
        before = np.array(self.first_losses())
        if not np.isfinite(before).all():
            raise InputError(
                f"the loss is {before[~np.isfinite(before)][0]} before the first step, at seed 0 and "
                f"{'the checkpoint' if self.checkpoint else 'the first weights'}: nothing can be measured with it",
                field="workload",
            )

    @property
    def start_lr(self) -> float:
        """Where the search at the tuned batch begins."""
        return (
            START_LR[self.plan.recipe.optimizer]
            if self.stand_in
            else self.plan_of(self.tuned_batch).require().lr
        )

    @property
    def run_samples(self) -> int | None:
        """The samples of the whole planned run, where it has an end."""
        steps, batch = self.plan.total_steps, self.plan.effective_batch
        return None if steps is None or batch is None else steps * batch

    def seconds_left(self) -> float:
        """Of the budget."""
        return self.options.budget_seconds - (self.clock() - self._begun)

    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self.seconds_left() <= 0

    def _plan_of(self, batch: int) -> Plan:
        """The recipe planned at a batch by the plan's rule: its optimizer's values, and not its split."""
        if batch == self.plan.effective_batch:
            return self.plan
        recipe = self.plan.recipe
        fields = {name: value for name, value in msgspec.structs.asdict(recipe).items() if name not in _SPLIT}
        settings = {"rule": self.plan.settings.rule, "beta_half_life": self.plan.settings.beta_half_life}
        found = plan(Recipe(**fields), 1, policy=batch, **settings)  # type: ignore[arg-type]
        if found.status == "infeasible":
            raise InputError(f"batch {batch:,} cannot be planned: {found.explain()}", field="batches")
        return found

    def training(self, batch: int, seed: int, **keywords: Any) -> Training:
        """A training that has not begun."""
        return Training(
            self.plan_of(batch),
            self.make,
            self.ranks,
            seed=seed,
            block=self.block,
            checkpoint=self.checkpoint,
            **keywords,
        )

    def split(self, batch: int) -> list[list[Share]]:
        """A batch over the ranks."""
        return shares(even(batch, self.ranks.world_size, self.micro))

    def train(self, batch: int, lr: float, seed: int, samples: int) -> Trial:
        """One trial.

        Raises:
            Expired: the budget ended in it.
        """
        begun = self.clock()
        steps = max(1, round(samples / batch))
        with own_randomness():
            training = self.training(batch, seed)
            course = Course(lr, steps, shape_of(training.plan, constant=self.checkpoint is not None))
            diverged, _ = run(training, self.split(batch), course, expired=self.expired)
            losses = () if diverged else training.evaluate(self.part)
        if not np.isfinite(losses).all():
            losses = ()
        return Trial(
            batch=batch,
            lr=lr,
            seed=seed,
            samples=samples,
            losses=losses,
            steps=steps,
            seconds=self.clock() - begun,
        )

    def cost(self, batch: int) -> tuple[float, float]:
        """(seconds that each trial takes beside its steps, seconds a sample)."""
        with own_randomness():
            training = self.training(batch, 0)
            step = seconds_of_step(training, self.split(batch), self.clock)
            steps_done = self.clock()
            training.evaluate(self.part)
        fixed = self.clock() - steps_done
        fixed = float(self.ranks.from_first(max(fixed, 0.0)))
        return fixed, step / batch

    def _first_losses(self) -> tuple[float, ...]:
        with own_randomness():
            return self.training(self.tuned_batch, 0).evaluate(self.part)


_SPLIT = ("gpus", "micro_batch", "accumulation", "model_parallel", "device_batches", "ramp")
"""What a recipe says of the hardware; a trial has its own."""


def tuned_batch(plan: Plan) -> int:
    """The batch that was tuned; the planned one where that is within a tenth of it."""
    planned, tuned = plan.require().effective_batch, plan.recipe.effective_batch
    return planned if 0.9 < planned / tuned < 1.1 else tuned


def maker(factory: Callable[[], Any] | None, name: str | None) -> Make:
    """What makes the workload for a seed and a plan.

    Raises:
        InputError: there is no such factory.
    """
    if factory is None and name is None:

        def built_in(seed: int, plan: Plan) -> Workload:
            seed_all(seed)
            return stand_in(plan)

        return built_in
    found = factory if factory is not None else factory_of(name or "")

    def own(seed: int, plan: Plan) -> Workload:
        seed_all(seed)
        with user_code("the workload's factory"):
            workload = made(found)
        optimizer = workload.optimizer
        return replace(workload, optimizer=lambda p: with_values(optimizer(p), plan))

    return own


def with_values(optimizer: Any, plan: Plan) -> Any:
    """The user's optimizer with what the plan changes against the tuned recipe: weight decay by its factor, betas and eps as planned."""
    recipe = plan.recipe
    factor = plan.weight_decay / recipe.weight_decay if recipe.weight_decay and plan.weight_decay else 1.0
    betas = recipe.betas or (0.9, 0.999)
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] *= factor
        if "betas" in group and plan.beta1 is not None and plan.beta2 is not None:
            moved = (plan.beta1, plan.beta2) != tuple(betas)
            group["betas"] = (plan.beta1, plan.beta2) if moved else group["betas"]
        if "eps" in group and plan.eps is not None and plan.eps != (recipe.eps or 1e-8):
            group["eps"] = plan.eps
    return optimizer
