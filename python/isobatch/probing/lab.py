"""Where trials are made: the plans at each batch, the workload from a seed, and the budget."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from isobatch.equivalence.tensors import tensors_in
from isobatch.errors import InputError
from isobatch.planning.plan import Plan, plan
from isobatch.planning.settings import HYPERPARAMETERS
from isobatch.probing.estimate import TrialResult
from isobatch.probing.options import Budget, ProbeOptions, budget_text
from isobatch.probing.training import ShortTraining, diverges, lr_course, unusable
from isobatch.recipes.recipe import Recipe
from isobatch.validate.workload import Workload, call_factory, user_code
from isobatch.words import counted, duration

MAX_BLOCK_SAMPLES = 64
MAX_PART_SAMPLES = 32
"""In a part of the evaluation samples."""
MAX_STEPS, MIN_STEPS = 300, 40
"""Of a trial at the largest batch, where the budget decides."""
TIMED_STEPS = 4
TRIED_SAMPLES = 4
SPARE = 0.6
"""Of a budget, what is planned for: the rest is for grids that grow and for a machine that others use."""

_SPLIT = frozenset(
    ("gpus", "micro_batch", "accumulation", "model_parallel", "expert_parallel", "device_batches", "ramp")
)
"""A recipe's fields of the hardware; a trial has its own."""


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leaves the process's random generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _with_values(optimizer: Any, plan: Plan) -> Any:
    """Sets the plan's weight decay (by its factor), betas and eps in the user's optimizer."""
    recipe = plan.recipe
    factor = plan.weight_decay / recipe.weight_decay if recipe.weight_decay and plan.weight_decay else 1.0
    betas = recipe.betas or (0.9, 0.999)
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] *= factor
        if "betas" in group and plan.beta1 is not None and plan.beta2 is not None:
            changed = (plan.beta1, plan.beta2) != tuple(betas)
            group["betas"] = (plan.beta1, plan.beta2) if changed else group["betas"]
        if "eps" in group and plan.eps is not None and plan.eps != (recipe.eps or 1e-8):
            group["eps"] = plan.eps
    return optimizer


class Lab:
    """Trains a plan's workload at any batch, learning rate and seed, within a budget."""

    def __init__(
        self,
        plan: Plan,
        options: ProbeOptions,
        device: torch.device,
        budget: Budget,
        factory: Callable[[], Any],
    ) -> None:
        self.plan, self.options, self.device, self.budget = plan, options, device, budget
        self.planned_batch, self.tuned_batch = plan.require().effective_batch, tuned_batch(plan)
        self.batches = [self.tuned_batch]
        self.batches += sorted({self.planned_batch, *options.batches} - {self.tuned_batch})
        self.plan_of = cache(self._plan_of)
        self.needed_seconds: float | None = None
        self._factory = factory
        self.micro = plan.require().micro_batch
        self.block = max(1, min(MAX_BLOCK_SAMPLES, self.tuned_batch))
        self.part = max(1, min(MAX_PART_SAMPLES, self.micro))
        with own_randomness():
            check_reseeding(lambda seed: self.make(seed, plan), device)
            self.first_losses = np.array(self.training(self.tuned_batch, 0).evaluate(self.part))
            self._check_finite(self.first_losses, "")
            first = self.split(min(self.tuned_batch, self.micro))
            loss = self.training(self.tuned_batch, 0).gradient(first)
            self._check_finite(np.array([loss]), ", in training mode")

    def make(self, seed: int, plan: Plan) -> Workload:
        """Makes the workload for a seed, with a plan's values in its optimizer."""
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        with user_code("the workload's factory"):
            workload = call_factory(self._factory)
        optimizer = workload.optimizer
        return replace(workload, optimizer=lambda p: _with_values(optimizer(p), plan))

    def _check_finite(self, losses: Any, how: str) -> None:
        """Refuses a loss of NaN or infinity at the start: it measures nothing."""
        if not np.isfinite(losses).all():
            loss, when = losses[~np.isfinite(losses)][0], f"before the first step{how}"
            raise unusable(
                f"the loss is {loss} {when}, at seed 0 and the first weights: nothing can be measured with it"
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
        batch_plan: Plan = plan(Recipe(**fields), 1, policy=batch, **settings)
        if batch_plan.status == "infeasible":
            raise InputError(f"batch {batch:,} cannot be planned: {batch_plan.explain()}", field="batches")
        return batch_plan

    def training(self, batch: int, seed: int) -> ShortTraining:
        """Makes a training by the plan of its batch."""
        plan = self.plan_of(batch)
        workload = self.make(seed, plan)
        return ShortTraining(plan, workload, self.device, seed, self.block, self.budget.check)

    def split(self, batch: int) -> list[range]:
        """Splits a batch into micro-batches: the samples of each, counted within the step."""
        return [range(start, min(start + self.micro, batch)) for start in range(0, batch, self.micro)]

    def train(self, batch: int, lr: float, seed: int, samples: int) -> TrialResult:
        """Makes one trial."""
        begun, steps = self.budget.spent(), max(1, round(samples / batch))
        losses: tuple[float, ...] = ()
        with own_randomness():
            training = self.training(batch, seed)
            course = lr_course(training.plan, lr, steps)
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

    def fitting_samples(self, batches: list[int], trials: int, wholes: float, least: int) -> float:
        """Returns a whole trial's samples within the budget for `wholes` whole trials, at least `least`."""
        costs = [self._cost(batch) for batch in batches]
        fixed, each = (sum(cost[part] for cost in costs) for part in (0, 1))
        remaining = self.budget.left()
        work = fixed * trials + each * wholes * least
        needed = self.budget.seconds - remaining + work / SPARE
        fitting = (SPARE * remaining - fixed * trials) / (each * wholes) if each else float("inf")
        self.needed_seconds = float(needed)
        if work > remaining:
            raise InputError(
                f"{duration(self.budget.seconds)} is too short for {counted(trials * len(batches), 'trial')} "
                f"at {'batch' if len(batches) == 1 else 'batches'} {', '.join(f'{b:,}' for b in batches)}, "
                f"the whole ones of {least:,} samples. A budget of {budget_text(needed)} would likely do",
                field="budget",
            )
        return float(max(fitting, least))

    def _cost(self, batch: int) -> tuple[float, float]:
        """Returns seconds (of a trial beside its steps, of a sample): medians of a few steps."""
        clock, timed = self.budget.clock, min(batch, 4 * self.micro)
        begun = clock()
        seconds: list[float] = []
        with own_randomness():
            training, shares = self.training(batch, 0), self.split(timed)
            trained = clock()
            for _ in range(TIMED_STEPS + 1):
                stepping = clock()
                training.step(shares, 0.0)
                seconds.append(clock() - stepping)
            stepped = clock()
            training.evaluate(self.part)
        fixed = trained - begun + clock() - stepped
        return fixed, float(np.median(seconds[1:])) / timed


def tuned_batch(plan: Plan) -> int:
    """Returns the tuned batch; the planned one within a tenth of it."""
    planned, tuned = plan.require().effective_batch, plan.recipe.effective_batch
    return planned if 0.9 < planned / tuned < 1.1 else tuned


def check_reseeding(make: Callable[[int], Workload], device: torch.device) -> None:
    """Refuses a workload with other weights or samples when made or drawn twice from one seed."""
    first, second = make(1), make(1)
    for name, weight in first.model.state_dict().items():
        if not torch.equal(weight, second.model.state_dict()[name]):
            todo = "Draw the weights from torch's, NumPy's or Python's own generator inside the factory"
            raise unusable(
                f"cannot be reseeded: made twice after torch.manual_seed(1), {name!r} differs. {todo}"
            )

    def drawn(workload: Workload, seed: int) -> list[Tensor]:
        with user_code("the workload's batch"):
            return tensors_in(workload.batch(TRIED_SAMPLES, torch.Generator().manual_seed(seed), device))

    once, again, third = drawn(first, 1), drawn(first, 1), drawn(first, 2)
    if not once:
        raise unusable("batch must give tensors, or mappings or tuples of them")
    for shape in (tuple(t.shape) for t in once if not t.dim() or len(t) != TRIED_SAMPLES):
        problem = f"batch was asked for {TRIED_SAMPLES} samples, and gave a tensor of shape {shape}"
        raise unusable(f"{problem}: the first dimension must be the samples")
    wrong, todo = None, "Draw indices from the generator"
    if not _equal(once, again):
        wrong = "gave other samples for the same state of its generator"
    elif _equal(once, third):
        wrong = "gives the same samples whatever its generator"
    if wrong is not None:
        raise unusable(f"cannot be reseeded: batch {wrong}. {todo}")


def _equal(some: list[Tensor], expected: list[Tensor]) -> bool:
    return len(some) == len(expected) and all(torch.equal(a, b) for a, b in zip(some, expected, strict=True))
