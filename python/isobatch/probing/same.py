"""The promise of the name: the same training at every split. And where the batch grows, the gap."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch

from isobatch.errors import InputError
from isobatch.probing.estimate import interval
from isobatch.probing.lab import Lab
from isobatch.probing.report import SameFinding, SplitFinding
from isobatch.probing.training import Expired, Training, load_optimizer, load_weights, own_randomness, shares
from isobatch.probing.trials import Trial
from isobatch.validate.step.difference import difference
from isobatch.words import duration

STEPS = 12
SAME = 1e-9
"""Relative, in double precision. Rounding alone leaves about 1e-15 a step, which an optimizer may amplify."""
MOST_SAMPLES = 1 << 20

Sizes = list[list[int]]


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


def same(lab: Lab) -> SameFinding:
    """The tuned recipe and the plan from one seed, each split against the whole batch on one replica; of a plan whose batch grows,
    the loss at equal samples.

    Raises:
        InputError: the budget ended before, or the loss is not finite.
    """
    planned = lab.plan.require().effective_batch
    if planned != lab.plan.recipe.effective_batch and planned != lab.tuned_batch:
        return _gap(lab)
    own = [[int(n) for n in lab.plan.micro_batches(rank)] for rank in range(lab.plan.layout.data_parallel)]
    steps = int(lab.ranks.from_first(max(2, min(STEPS, MOST_SAMPLES // planned))))
    with own_randomness():
        reference = _trained(lab, [(steps, [[planned]])])
        found = []
        for name, sizes in splits_of(planned, own):
            found.append(_compared(name, reference, _trained(lab, [(steps, sizes)])))
        half = steps // 2
        elastic = [(half, own), (steps - half, splits_of(planned, own)[-1][1])]
        found.append(_compared("elastic, moved half-way", reference, _trained(lab, elastic)))
    return SameFinding(
        steps=steps, splits=tuple(found), gap=None, gap_interval=None, tuned_loss=None, planned_loss=None
    )


def _compared(name: str, reference: list[torch.Tensor], found: list[torch.Tensor]) -> SplitFinding:
    error = difference(found, reference).error
    return SplitFinding(split=name, difference=error, same=error <= SAME)


def _trained(lab: Lab, legs: list[tuple[int, Sizes]]) -> list[torch.Tensor]:
    """The weights behind some steps in one split after the other; between two the run is stopped, and goes on from its checkpoint in a
    training that is made anew."""
    planned, lr = lab.plan.require().effective_batch, lab.start_lr
    training = lab.training(planned, 0, double=True)
    for leg, (steps, sizes) in enumerate(legs):
        if leg:
            training = _restarted(lab, training)
        for _ in range(steps):
            if lab.ranks.from_first(lab.expired()):
                raise InputError(
                    f"{duration(lab.options.budget_seconds)} were spent before all splits were trained",
                    field="budget",
                )
            loss = training.step(shares(sizes), lr)
            if not np.isfinite(loss):
                raise InputError(f"the loss is {loss} at learning rate {lr:g}", field="workload")
    return [p.detach().clone() for p in training.trained]


def _restarted(lab: Lab, before: Training) -> Training:
    state, consumed = before.state(), before.consumed
    training = lab.training(lab.plan.require().effective_batch, 0, double=True)
    load_weights(training.model, state)
    load_optimizer(training.optimizer, state["optimizer"])
    training.consumed = consumed
    return training


def _gap(lab: Lab) -> SameFinding:
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

    with suppress(Expired):
        for seed in range(lab.options.seeds):
            rows.append(pair(seed))  # noqa: PERF401 - those before the budget's end are kept
    if not rows:
        raise InputError(
            f"{duration(lab.options.budget_seconds)} were spent before one pair of trials was made",
            field="budget",
        )
    if any(trial.diverged for row in rows for trial in row.values()):
        which = sorted({name for row in rows for name, trial in row.items() if trial.diverged})
        raise InputError(f"diverged: {' and '.join(which)}; probe the learning rate first", field="workload")
    gaps = np.array([np.subtract(row["planned"].losses, row["tuned"].losses) for row in rows])
    return SameFinding(
        steps=rows[0]["planned"].steps,
        splits=(),
        gap=float(gaps.mean()),
        gap_interval=_resampled(gaps),
        tuned_loss=float(np.mean([row["tuned"].loss for row in rows])),
        planned_loss=float(np.mean([row["planned"].loss for row in rows])),
    )


def _resampled(gaps: Any) -> tuple[float, float]:
    """The bootstrap interval of a mean over seeds and parts."""
    draw = np.random.default_rng(0)
    seeds, parts = gaps.shape
    means = [
        gaps[draw.integers(seeds, size=seeds)][:, draw.integers(parts, size=parts)].mean()
        for _ in range(2000)
    ]
    return interval(np.array(means))


def _samples(lab: Lab, batches: list[int]) -> int:
    """What the budget allows for each trial."""
    costs = [lab.cost(batch) for batch in batches]
    each = sum(cost[1] for cost in costs) * lab.options.seeds
    fixed = sum(cost[0] for cost in costs) * lab.options.seeds
    fitting = int((0.7 * lab.seconds_left() - fixed) / each) if each else 300 * max(batches)
    if fitting < 40 * max(batches):
        raise InputError(
            f"{duration(lab.options.budget_seconds)} is too short: 40 steps at batch {max(batches):,} take "
            f"{duration(costs[-1][1] * 40 * max(batches))} here, and {2 * lab.options.seeds} trials are needed",
            field="budget",
        )
    return int(lab.ranks.from_first(min(fitting, 300 * max(batches))))
