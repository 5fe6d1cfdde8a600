"""Where trials are made: the workload, the processes and the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.probing.budget import Budget
from isobatch.probing.options import ProbeOptions
from isobatch.probing.ranks import Ranks, agree
from isobatch.probing.scope import Scope
from isobatch.probing.stand_in import stand_in
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
from isobatch.validate.ranks.group import Group
from isobatch.validate.workload import Workload, factory_of, make, user_code

MOST_BLOCK = 64
PART = 32
"""Evaluation samples in a part, at most."""
STAND_IN_MICRO = 4096


class Lab(Scope):
    """Trains a plan's workload at any batch, learning rate and seed.

    Args:
        plan: feasible.
        options: how to probe.
        ranks: the processes.
        factory: makes the workload; None: as the options name it.
        journal: keeps the trials.
        budget: has begun; None: the options' one begins now.

    Raises:
        InputError: the workload cannot be made, cannot be reseeded, or its loss is not finite from the start.
        Expired: the budget was spent before its first loss was known.
    """

    def __init__(
        self,
        plan: Plan,
        options: ProbeOptions,
        ranks: Ranks | Group,
        *,
        factory: Callable[[], Any] | None = None,
        journal: Journal | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(plan, options, stand_in=factory is None and options.workload is None)
        self.ranks, self.budget = ranks, budget if budget is not None else Budget(options.budget_seconds)
        self.journal = journal if journal is not None else Journal(None, "")
        self.make = maker(factory, options.workload)
        self.checkpoint = (
            None if options.checkpoint is None else read_checkpoint(options.checkpoint, ranks.device)
        )
        made_plan = plan.require()
        self.micro = STAND_IN_MICRO if self.stand_in else made_plan.micro_batch
        self.block = max(1, min(MOST_BLOCK, self.tuned_batch))
        self.part = max(1, min(PART, self.micro))
        fault = None
        try:
            with own_randomness():
                check_reseeding(lambda seed: self.make(seed, plan), ranks.device)
        except InputError as error:  # perhaps on this rank alone: then nobody must wait for it
            fault = error
        agree(ranks, fault)
        self.first_losses = cache(self._first_losses)
        self._check_finite(np.array(self.first_losses()), "")
        with own_randomness():
            loss = self.training(self.tuned_batch, 0).gradient(self.split(min(self.tuned_batch, self.micro)))
        self._check_finite(np.array([loss]), ", in training mode")

    def _check_finite(self, losses: Any, how: str) -> None:
        """A loss that is not finite from the start measures nothing."""
        if not np.isfinite(losses).all():
            raise InputError(
                f"the loss is {losses[~np.isfinite(losses)][0]} before the first step{how}, at seed 0 and "
                f"{'the checkpoint' if self.checkpoint else 'the first weights'}: nothing can be measured with it",
                field="workload",
            )

    def training(self, batch: int, seed: int, *, plan: Plan | None = None, **keywords: Any) -> Training:
        """A training that has not begun, by the plan of that batch or another."""
        return Training(
            plan if plan is not None else self.plan_of(batch),
            self.make,
            self.ranks,
            seed=seed,
            block=self.block,
            checkpoint=self.checkpoint,
            expired=self.budget.expired,
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
        begun = self.budget.spent()
        steps = max(1, round(samples / batch))
        with own_randomness():
            training = self.training(batch, seed)
            course = Course(lr, steps, shape_of(training.plan, constant=self.checkpoint is not None))
            made = self.budget.spent()
            diverged, _ = run(training, self.split(batch), course)
            stepped = self.budget.spent()
            losses = () if diverged else training.evaluate(self.part)
        if not np.isfinite(losses).all():
            losses = ()
        ended = self.budget.spent()
        return Trial(
            batch=batch,
            lr=lr,
            seed=seed,
            samples=samples,
            losses=losses,
            steps=steps,
            seconds=ended - begun,
            beside_seconds=made - begun + ended - stepped,
        )

    def begin(self, samples: int) -> int:
        """The samples of a whole trial: these, or those of the journal that goes on. Rank 0 alone writes it.

        Raises:
            InputError: the file cannot be written, or holds the trials of another workload; on all ranks.
        """
        fault, found = None, samples
        try:
            if self.ranks.rank == 0:
                found = self.journal.begin(samples, float(np.mean(self.first_losses())))
        except InputError as error:
            fault = error
        agree(self.ranks, fault)
        return int(self.ranks.from_first(found))

    def keep(self, trial: Trial) -> None:
        """Keeps a trial.

        Raises:
            InputError: the file cannot be written; on all ranks.
        """
        fault = None
        try:
            self.journal.add(trial)
        except InputError as error:
            fault = error
        agree(self.ranks, fault)

    def cost(self, batch: int) -> tuple[float, float]:
        """(seconds that each trial takes beside its steps, seconds a sample).

        A batch of many micro-batches is timed by four of them on each rank.

        Raises:
            Expired: the budget is spent.
        """
        clock, timed = self.budget.clock, min(batch, 4 * self.micro * self.ranks.world_size)
        begun = clock()
        with own_randomness():
            training = self.training(batch, 0)
            made = clock()
            step = seconds_of_step(training, self.split(timed), clock)
            stepped = clock()
            training.evaluate(self.part)
        fixed = made - begun + clock() - stepped
        return float(self.ranks.from_first(max(fixed, 0.0))), step / timed

    def _first_losses(self) -> tuple[float, ...]:
        with own_randomness():
            return self.training(self.tuned_batch, 0).evaluate(self.part)


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
            workload = make(found)
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
