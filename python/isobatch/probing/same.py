"""The promise of the name: the same training at every split. And where the batch grows, the gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.planning.plan import plan as plan_recipe
from isobatch.probing.estimate import interval, resampled_means
from isobatch.probing.findings import SameFinding, SplitFinding
from isobatch.probing.lab import Lab
from isobatch.probing.options import budget_text, stopped_after
from isobatch.probing.training import (
    Course,
    Expired,
    Training,
    load_optimizer,
    load_weights,
    own_randomness,
    shape_of,
    shares,
)
from isobatch.probing.trials import Trial
from isobatch.validate.difference import difference
from isobatch.words import duration

STEPS = 12
SAME = 1e-9
"""Relative, in double precision. Rounding alone leaves about 1e-15 a step, which an optimizer may amplify."""
MOST_SAMPLES = 1 << 20

Sizes: TypeAlias = list[list[int]]
Legs: TypeAlias = list[tuple[int, Sizes]]


def splits_of(batch: int, own: Sizes) -> list[tuple[str, Sizes]]:
    """Splits of a batch to try beside the plan's own: over replicas, with accumulation, ragged and uneven.

    >>> [name for name, _ in splits_of(64, [[8] * 4] * 2)]
    ["the plan's own", '2 × 32', '4 × 16', '8 × 8', '2 × 8 × 4', 'ragged over 3', 'uneven over 3']
    """
    found: list[tuple[str, Sizes]] = [("the plan's own", own)]
    found += [
        (f"{replicas} × {batch // replicas}", [[batch // replicas]] * replicas)
        for replicas in (2, 4, 8)
        if batch % replicas == 0 and batch > replicas
    ]
    if batch % 8 == 0:
        found.append((f"2 × {batch // 8} × 4", [[batch // 8] * 4] * 2))
    if batch >= 6:
        counts = [batch // 3 + (rank < batch % 3) for rank in range(3)]
        ragged = [[n - n // 2, n // 2] for n in counts]
        found.append(("ragged over 3", ragged))
    if (passes := next((n for n in (8, 4, 5, 7) if batch % n == 0), None)) is not None:
        each = batch // passes
        found.append(("uneven over 3", [[each] * (passes // 3 + (rank < passes % 3)) for rank in range(3)]))
    return found


def same(lab: Lab, publish: Callable[[SameFinding], None]) -> tuple[SameFinding, str | None]:
    """The tuned recipe on one replica and the plan in many splits, from one seed; of a plan whose batch grows, the loss at equal samples.

    Args:
        lab: trains.
        publish: called with what is known, each time that it is more.

    Returns:
        (the finding, what ended it before it was done: "budget" or "interrupted"; None: nothing).

    Raises:
        InputError: the budget ended before anything was known, or the loss is not finite.
    """
    planned = lab.plan.require().effective_batch
    if planned != lab.plan.recipe.effective_batch and planned != lab.tuned_batch:
        return _gap(lab)
    steps = int(lab.ranks.from_first(max(2, min(STEPS, MOST_SAMPLES // planned))))
    tuned = _tuned(lab)
    found: list[SplitFinding] = []
    wanted = _wanted(lab, tuned, steps)
    stopped = None

    def finding() -> SameFinding:
        left = tuple(name for name, _, _ in wanted[len(found) :])
        return SameFinding(
            steps=steps,
            splits=tuple(found),
            missing=left,
            gap=None,
            gap_interval=None,
            tuned_loss=None,
            planned_loss=None,
        )

    with own_randomness():
        try:
            reference = _trained(lab, tuned, [(steps, [[planned]])], steps)
            for name, plan, legs in wanted:
                found.append(_compared(name, reference, _trained(lab, plan, legs, steps)))
                publish(finding())
        except Expired:
            stopped = "budget"
        except KeyboardInterrupt:
            stopped = "interrupted"
    if not found:
        needed = None if stopped != "budget" else budget_text(10 * lab.budget.spent())
        raise InputError(
            f"{stopped_after(stopped, lab.budget.seconds)} before the first split was trained{f'; try --budget {needed}' if needed else ''}",
            field="budget" if needed else None,
        )
    return finding(), stopped


def _tuned(lab: Lab) -> Plan:
    """The tuned recipe where it was tuned, at the batch that is compared; the plan itself where the batch moved within a tolerance."""
    recipe, planned = lab.plan.recipe, lab.plan.require().effective_batch
    if recipe.effective_batch != planned:
        return lab.plan
    found = plan_recipe(recipe, recipe.gpus or 1)
    return lab.plan if found.status == "infeasible" else found


def _wanted(lab: Lab, tuned: Plan, steps: int) -> list[tuple[str, Plan, Legs]]:
    """What is compared: a name, whose learning rates and optimizer, and the splits one after the other."""
    planned, own = lab.plan.require().effective_batch, _sizes(lab.plan)
    splits = splits_of(planned, own)
    found = [(name, lab.plan, [(steps, sizes)]) for name, sizes in splits]
    if tuned is not lab.plan:
        found.insert(0, ("the tuned recipe's own", tuned, [(steps, _sizes(tuned))]))
    half = steps // 2
    elastic = [(half, own), (steps - half, splits[-1][1])]
    return [*found, ("elastic, moved half-way", lab.plan, elastic)]


def _sizes(plan: Plan) -> Sizes:
    return [[int(n) for n in plan.micro_batches(rank)] for rank in range(plan.layout.data_parallel)]


def _compared(name: str, reference: list[torch.Tensor], found: list[torch.Tensor]) -> SplitFinding:
    error = difference(found, reference).error
    return SplitFinding(split=name, difference=error, same=error <= SAME)


def _trained(lab: Lab, plan: Plan, legs: Legs, steps: int) -> list[torch.Tensor]:
    """The weights behind some steps in one split after the other, with the plan's whole schedule made so short; between two splits the
    run is stopped, and goes on from its checkpoint in a training that is made anew."""
    batch = lab.plan.require().effective_batch
    course = Course(
        lab.start_lr * _peak(lab, plan), steps, shape_of(plan, constant=lab.checkpoint is not None)
    )
    training = lab.training(batch, 0, plan=plan, double=True)
    step = 0
    for leg, (count, sizes) in enumerate(legs):
        if leg:
            training = _restarted(lab, plan, training)
        for _ in range(count):
            lr = course.at(step)
            loss = training.step(shares(sizes), lr)
            if not np.isfinite(loss):
                raise InputError(f"the loss is {loss} at step {step}, learning rate {lr:g}", field="workload")
            step += 1
    return [p.detach().clone() for p in training.trained]


def _peak(lab: Lab, plan: Plan) -> float:
    """A plan's learning rate over that of the tuned batch: 1 where it is kept."""
    return plan.require().lr / lab.plan_of(lab.tuned_batch).require().lr


def _restarted(lab: Lab, plan: Plan, before: Training) -> Training:
    state, consumed = before.state(), before.consumed
    training = lab.training(lab.plan.require().effective_batch, 0, plan=plan, double=True)
    load_weights(training.model, state)
    load_optimizer(training.optimizer, state["optimizer"])
    training.consumed = consumed
    return training


def _gap(lab: Lab) -> tuple[SameFinding, str | None]:
    """The loss of the plan against the tuned recipe's at equal samples, over seeds."""
    planned, tuned = lab.plan.require().effective_batch, lab.tuned_batch
    samples = lab.options.samples or _samples(lab, [tuned, planned])
    scale = lab.plan.require().lr / lab.plan_of(tuned).require().lr
    rows: list[dict[str, Trial]] = []

    def pair(seed: int) -> dict[str, Trial]:
        return {
            "tuned": lab.train(tuned, lab.start_lr, seed, samples),
            "planned": lab.train(planned, lab.start_lr * scale, seed, samples),
        }

    stopped = None
    try:
        for seed in range(lab.options.seeds):
            rows.append(pair(seed))  # noqa: PERF401 - those before the budget's end are kept
    except Expired:
        stopped = "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    if not rows:
        raise InputError(
            f"{stopped_after(stopped, lab.budget.seconds)} before one pair of trials of {samples:,} samples was made: pass fewer --samples or "
            "a larger --budget",
            field="budget",
        )
    if any(trial.diverged for row in rows for trial in row.values()):
        which = sorted({name for row in rows for name, trial in row.items() if trial.diverged})
        raise InputError(f"diverged: {' and '.join(which)}; probe the learning rate first", field="workload")
    gaps = np.array([np.subtract(row["planned"].losses, row["tuned"].losses) for row in rows])
    finding = SameFinding(
        steps=rows[0]["planned"].steps,
        splits=(),
        missing=(),
        samples=samples,
        seeds=len(rows),
        gap=float(gaps.mean()),
        gap_interval=interval(resampled_means(gaps[None])[:, 0]),
        tuned_loss=float(np.mean([row["tuned"].loss for row in rows])),
        planned_loss=float(np.mean([row["planned"].loss for row in rows])),
    )
    return finding, stopped


def _samples(lab: Lab, batches: list[int]) -> int:
    """What the budget allows for each trial."""
    costs = [lab.cost(batch) for batch in batches]
    each = sum(cost[1] for cost in costs) * lab.options.seeds
    fixed = sum(cost[0] for cost in costs) * lab.options.seeds
    left = float(lab.ranks.from_first(lab.budget.left()))
    fitting = int((0.7 * left - fixed) / each) if each else 300 * max(batches)
    if fitting < 40 * max(batches):
        needed = lab.budget.spent() + (fixed + each * 40 * max(batches)) / 0.7
        raise InputError(
            f"{duration(lab.options.budget_seconds)} is too short: 40 steps at batch {max(batches):,} take "
            f"{duration(costs[-1][1] * 40 * max(batches))} here, and {2 * lab.options.seeds} trials are needed. Raise the budget to "
            f"{budget_text(needed)}",
            field="budget",
        )
    return int(lab.ranks.from_first(min(fitting, 300 * max(batches))))
