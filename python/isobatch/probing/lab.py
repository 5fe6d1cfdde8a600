"""Where trials are made: the plans at each batch, the workload, the processes and the budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np

from isobatch.errors import InputError, missing
from isobatch.planning.plan import Plan, plan
from isobatch.planning.settings import HYPERPARAMETERS
from isobatch.probing.findings import TrialResult
from isobatch.probing.options import Budget, ProbeOptions, budget_text
from isobatch.probing.training import (
    Ranks,
    Replicas,
    ShortTraining,
    diverges,
    even,
    lr_course,
    seconds_of_step,
    shares,
)
from isobatch.probing.workload import check_reseeding, maker, own_randomness, read_checkpoint
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, duration

MAX_BLOCK_SAMPLES = 64
MAX_PART_SAMPLES = 32
"""In a part of the evaluation samples."""
MAX_STEPS, MIN_STEPS = 300, 40
"""Of a trial at the largest batch, where the budget decides."""
SPARE = 0.6
"""Of a budget, what is planned for: the rest is for grids that grow and for a machine that others use."""

_SPLIT = ("gpus", "micro_batch", "accumulation", "model_parallel", "device_batches", "ramp")
"""What a recipe says of the hardware; a trial has its own."""


class Lab:
    """Trains a plan's workload at any batch, learning rate and seed.

    Args:
        plan: feasible.
        options: how to probe.
        ranks: the processes.
        budget: has begun.
        factory: makes the workload; None: as the options name it.

    Raises:
        InputError: no workload is given where one is needed, it cannot be made or reseeded, or its loss is not finite from the start.
        Expired: the budget was spent before its first loss was known.
    """

    def __init__(
        self,
        plan: Plan,
        options: ProbeOptions,
        ranks: Ranks,
        budget: Budget,
        factory: Callable[[], Any] | None = None,
    ) -> None:
        self.plan, self.options, self.ranks, self.budget = plan, options, ranks, budget
        self.planned_batch, self.tuned_batch = plan.require().effective_batch, tuned_batch(plan)
        self.batches = [self.tuned_batch]
        self.batches += sorted({self.planned_batch, *options.batches} - {self.tuned_batch})
        self.plan_of = cache(self._plan_of)
        self.needed_seconds: float | None = None
        self._check_workload(factory)
        self.make = maker(options.workload, factory)
        self.checkpoint = (
            None if options.checkpoint is None else read_checkpoint(options.checkpoint, ranks.device)
        )
        self.micro = plan.require().micro_batch
        self.block = max(1, min(MAX_BLOCK_SAMPLES, self.tuned_batch))
        self.part = max(1, min(MAX_PART_SAMPLES, self.micro))
        with own_randomness():
            check_reseeding(lambda seed: self.make(seed, plan), ranks.device)
            self.first_losses = np.array(self.training(self.tuned_batch, 0).evaluate(self.part))
            self._check_finite(self.first_losses, "")
            first = self.split(min(self.tuned_batch, self.micro))
            loss = self.training(self.tuned_batch, 0).gradient(first)
            self._check_finite(np.array([loss]), ", in training mode")

    def _check_workload(self, factory: Callable[[], Any] | None) -> None:
        """Refuses the built-in workload where it cannot answer."""
        same = self.options.measure == "same" and self.planned_batch == self.tuned_batch
        if factory is None and self.options.workload is None and not same:
            raise missing(
                "workload",
                "give your own training as package.module:factory; the built-in one can only tell whether a plan that keeps the "
                "batch trains the same (--same)",
            )

    def _check_finite(self, losses: Any, how: str) -> None:
        """Refuses a loss of NaN or infinity at the start: it measures nothing."""
        if not np.isfinite(losses).all():
            raise InputError(
                f"the loss is {losses[~np.isfinite(losses)][0]} before the first step{how}, at seed 0 and "
                f"{'the checkpoint' if self.checkpoint else 'the first weights'}: nothing can be measured with it",
                field="workload",
            )

    @property
    def start_lr(self) -> float:
        """The learning rate at the tuned batch, where the search begins."""
        return self.plan_of(self.tuned_batch).require().lr

    @property
    def run_samples(self) -> int | None:
        """The samples of the whole planned run, where it has an end."""
        steps = self.plan.total_steps
        return None if steps is None else steps * self.planned_batch

    def _plan_of(self, batch: int) -> Plan:
        """Plans the recipe at a batch by the plan's rule: its optimizer's values, and not its split."""
        if batch == self.planned_batch:
            return self.plan
        recipe = self.plan.recipe
        fields = {name: value for name, value in msgspec.structs.asdict(recipe).items() if name not in _SPLIT}
        settings = {name: getattr(self.plan.settings, name) for name in ("rule", *HYPERPARAMETERS)}
        found: Plan = plan(Recipe(**fields), 1, policy=batch, **settings)
        if found.status == "infeasible":
            raise InputError(f"batch {batch:,} cannot be planned: {found.explain()}", field="batches")
        return found

    def training(
        self, batch: int, seed: int, *, plan: Plan | None = None, checkpoint: Any = None, double: bool = False
    ) -> ShortTraining:
        """Makes a training, by the plan of that batch or another, from the probe's checkpoint or another."""
        return ShortTraining(
            plan if plan is not None else self.plan_of(batch),
            self.make,
            self.ranks,
            seed=seed,
            block=self.block,
            checkpoint=checkpoint or self.checkpoint,
            double=double,
            expired=self.budget.expired,
        )

    def split(self, batch: int) -> Replicas:
        """Splits a batch over the ranks."""
        return shares(even(batch, self.ranks.world_size, self.micro))

    def train(self, batch: int, lr: float, seed: int, samples: int) -> TrialResult:
        """Makes one trial.

        Raises:
            Expired: the budget ended in it.
        """
        begun, steps = self.budget.spent(), max(1, round(samples / batch))
        losses: tuple[float, ...] = ()
        with own_randomness():
            training = self.training(batch, seed)
            course = lr_course(training.plan, lr, steps, constant=self.checkpoint is not None)
            if not diverges(training, self.split(batch), steps, course):
                losses = training.evaluate(self.part)
        return TrialResult(
            batch=batch,
            lr=lr,
            seed=seed,
            samples=samples,
            losses=losses if np.isfinite(losses).all() else (),
            steps=steps,
            seconds=self.budget.spent() - begun,
        )

    def fitting_samples(
        self, batches: list[int], trials: int, wholes: float, *, least: int, first: float = 1.0
    ) -> float:
        """Returns the samples of a whole trial within the budget, and `least` at least.

        Args:
            batches: at which trials are made.
            trials: at each batch; each is begun and evaluated.
            wholes: their samples, in whole trials.
            least: samples that a whole trial must have.
            first: the part of the work that must fit for anything to be known.

        Raises:
            InputError: the budget is too small for that part.
            Expired: it is spent already.
        """
        costs = [self._cost(batch) for batch in batches]
        fixed, each = (sum(cost[part] for cost in costs) for part in (0, 1))
        left = float(self.ranks.from_first(self.budget.left()))
        work = fixed * trials + each * wholes * least
        needed = self.budget.seconds - left + work / SPARE
        self.needed_seconds = float(self.ranks.from_first(needed))
        if SPARE * left < work * first:
            largest = max(batches)
            raise InputError(
                f"{duration(self.budget.seconds)} is too short for {counted(trials * len(batches), 'trial')} at "
                f"{'batch' if len(batches) == 1 else 'batches'} {', '.join(f'{b:,}' for b in batches)}: {counted(least // largest, 'step')} "
                f"at {largest:,} take {duration(costs[batches.index(largest)][1] * least)} here, and {duration(max(c[0] for c in costs))} to "
                f"begin and evaluate them. A budget of {budget_text(self.needed_seconds)} would likely do for all",
                field="budget",
            )
        fitting = (SPARE * left - fixed * trials) / (each * wholes) if each else float("inf")
        return float(self.ranks.from_first(max(fitting, least)))

    def _cost(self, batch: int) -> tuple[float, float]:
        """Times (a trial beside its steps, a sample), in seconds; a batch of many micro-batches by four of them on each
        rank."""
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


def tuned_batch(plan: Plan) -> int:
    """Returns the tuned batch; the planned one within a tenth of it."""
    planned, tuned = plan.require().effective_batch, plan.recipe.effective_batch
    return planned if 0.9 < planned / tuned < 1.1 else tuned
