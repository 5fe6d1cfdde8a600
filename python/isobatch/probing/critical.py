"""The critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971).

From one checkpoint branches go on at k times the batch, with the learning rate √k times as high for Adam and its family and k times for SGD,
each on the same number of samples, which its seed draws and the first training has not seen. The loss of a branch is smoothed by an
exponential average over evaluations at equal samples. A branch holds
where that ends at most `tolerance` above the branch at k = 1; the critical batch is the largest with all smaller ones holding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from isobatch.diagnosis.tensors import square
from isobatch.errors import InputError
from isobatch.probing.findings import Branch, CriticalFinding
from isobatch.probing.lab import Lab
from isobatch.probing.options import Publish
from isobatch.probing.training import diverges, lr_course
from isobatch.probing.workload import own_randomness
from isobatch.validate.proofs.noise_scale import noise_scale

MAX_DOUBLINGS = 10
MIN_BRANCH_STEPS = 10
"""Of the largest branch."""
EVALUATIONS = 8
SMOOTHING = 0.5
"""The weight of the past in the average over a branch's evaluations."""
NOISE_STEPS = 16


def measure_critical(lab: Lab, say: Callable[[str], None], publish: Publish) -> None:
    """Measures the critical batch at the checkpoint; without one, at weights first trained on as many samples as a branch.

    Args:
        lab: trains.
        say: called with a line of progress.
        publish: called each time that more is known.

    Raises:
        InputError: the budget is too small for the first two branches, or the first one diverges.
        Expired: the budget is spent.
    """
    base, samples = lab.tuned_batch, _samples(lab)
    branches: list[Branch] = []
    with own_randomness():
        state = _start(lab, base, samples)
        scale, error = _noise(lab, base, state)
        for branch in _branches(lab, base, state, samples):
            branches.append(branch)
            say(f"k = {branch.k}: {'diverged' if branch.loss is None else f'loss {branch.loss:.4f}'}")
            if len(branches) > 1:
                publish(
                    partial(
                        CriticalFinding,
                        samples=samples,
                        seeds=lab.options.seeds,
                        tolerance=lab.options.tolerance,
                        branches=tuple(branches),
                        critical_batch=max(one.batch for one in branches if one.holds),
                        bounded=not branch.holds,
                        noise_scale=scale,
                        noise_error=error,
                    )
                )


def _branches(lab: Lab, base: int, state: dict[str, object], samples: int) -> Iterator[Branch]:
    """Trains at ever larger batches, up to the first failure."""
    first: list[float | None] = []
    for doubling in range(MAX_DOUBLINGS + 1):
        k = 2**doubling
        if samples // (k * base) < MIN_BRANCH_STEPS:
            return
        losses = [_branch(lab, base, k, state, samples, seed) for seed in range(1, lab.options.seeds + 1)]
        first = first or losses
        branch = _judged(lab, base, k, losses, first)
        yield branch
        if not branch.holds:
            return


def _judged(lab: Lab, base: int, k: int, losses: list[float | None], first: list[float | None]) -> Branch:
    """Judges a branch against that at k = 1, seed by seed."""
    own = np.array([np.nan if loss is None else loss for loss in losses])
    gaps = own - np.array([np.nan if loss is None else loss for loss in first])
    if k == 1 and not np.isfinite(own).all():
        raise InputError(f"the branch at k = 1 diverged at learning rate {lab.start_lr:g}", field="workload")
    error = (
        float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 and np.isfinite(gaps).all() else None
    )
    return Branch(
        k=k,
        batch=k * base,
        lr=lab.start_lr * _factor(lab, k),
        loss=float(own.mean()) if np.isfinite(own).all() else None,
        error=error,
        holds=bool(np.isfinite(gaps).all() and gaps.mean() <= lab.options.tolerance),
    )


def _factor(lab: Lab, k: int) -> float:
    """Returns the factor of the learning rate at k times the batch."""
    return float(k) if lab.plan.recipe.optimizer == "sgd" else math.sqrt(k)


def _samples(lab: Lab) -> int:
    """Returns the samples of a branch: those that were asked for, or what the budget allows for about seven branches from each seed, and
    the start; the largest worth trying has MIN_BRANCH_STEPS steps."""
    base, asked = lab.tuned_batch, lab.options.samples
    least = 2 * MIN_BRANCH_STEPS * base
    if asked is not None:
        if asked < least:
            raise InputError(
                f"samples must be at least {least:,}, so that a branch at twice the batch has {MIN_BRANCH_STEPS} steps, got {asked:,}",
                field="samples",
            )
        return asked
    count = 1 + 7 * lab.options.seeds
    fitting = lab.fitting_samples([base], count * EVALUATIONS, count, least=least)
    return int(min(fitting, 2**8 * MIN_BRANCH_STEPS * base))


def _start(lab: Lab, base: int, samples: int) -> dict[str, object]:
    """Returns the checkpoint, or weights and optimizer after a first training."""
    training = lab.training(base, 0)
    if lab.checkpoint is None:
        steps = max(1, samples // base)
        course = lr_course(lab.plan, lab.start_lr, steps, constant=True)
        if diverges(training, lab.split(base), steps, course):
            raise InputError(
                f"the first training diverged at learning rate {lab.start_lr:g} and batch {base:,}: check the recipe's learning rate, "
                "or begin from a --checkpoint",
                field="workload",
            )
    return training.state()


def _branch(lab: Lab, base: int, k: int, state: dict[str, object], samples: int, seed: int) -> float | None:
    """Returns the smoothed loss of a branch; None where it diverged."""
    training, steps = lab.training(base, seed, checkpoint=state), samples // (k * base)
    lr, replicas = lab.start_lr * _factor(lab, k), lab.split(k * base)
    marks = {round(steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS)}
    smoothed: float | None = None
    for step in range(1, steps + 1):
        if not np.isfinite(training.step(replicas, lr)):
            return None
        if step in marks:
            loss = float(np.mean(training.evaluate(lab.part)))
            smoothed = loss if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
    return smoothed if smoothed is not None and math.isfinite(smoothed) else None


def _noise(lab: Lab, base: int, state: dict[str, object]) -> tuple[float | None, float | None]:
    """Measures the simple noise scale at the state: squared norms of the gradient of some samples, and of many."""
    small, many = base, 8
    training = lab.training(base, 1, checkpoint=state)
    local, averaged = [], []
    for _ in range(NOISE_STEPS):
        norms, total = [], [torch.zeros_like(p) for p in training.trained]
        for _ in range(many):
            training.gradient(lab.split(small))
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in training.trained]
            norms.append(sum(float(square(grad)) for grad in grads))
            total = [t + grad for t, grad in zip(total, grads, strict=True)]
        local.append(float(np.mean(norms)))
        averaged.append(sum(float(square(t / many)) for t in total))
    scale, error, _, _ = noise_scale(np.array(local), np.array(averaged), small, many * small)
    return scale, error
