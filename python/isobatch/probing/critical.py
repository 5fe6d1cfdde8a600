"""The critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971).

From one checkpoint branches go on at k times the batch, with the learning rate √k times as high for Adam and its family and k times for SGD,
each on the same number of samples, which its seed draws and the first training has not seen. The loss of a branch is smoothed by an
exponential average over evaluations at equal samples. A branch holds
where that ends at most `tolerance` above the branch at k = 1; the critical batch is the largest with all smaller ones holding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from isobatch.diagnosis.tensors import square
from isobatch.errors import InputError
from isobatch.probing.findings import Branch, CriticalFinding
from isobatch.probing.lab import Lab
from isobatch.probing.options import budget_text, stopped_after
from isobatch.probing.training import Course, Expired, Training, own_randomness, run, shape_of
from isobatch.validate.difference import grads
from isobatch.validate.proofs.noise_scale import noise_scale
from isobatch.words import counted, duration

LARGEST = 10
"""Doublings at most."""
LEAST_STEPS = 10
"""Of the largest branch."""
EVALUATIONS = 8
NOISE_STEPS = 16


def critical(lab: Lab, publish: Callable[[CriticalFinding], None]) -> tuple[CriticalFinding, str | None]:
    """The critical batch at the checkpoint; without one, at weights that are first trained on as many samples as a branch.

    Args:
        lab: trains.
        publish: called with what is known, each time that it is more.

    Returns:
        (the finding, what ended it before it was done: "budget" or "interrupted"; None: nothing).

    Raises:
        InputError: the budget is too small for the first two branches, or the first one diverges.
    """
    base = lab.tuned_batch
    samples = _asked(lab, base)
    branches: list[Branch] = []
    noise: tuple[float | None, float | None] = (None, None)
    stopped = None
    with own_randomness():
        try:
            state = _start(lab, base, samples)
            noise = _noise(lab, base, state)
            for branch in _branches(lab, base, state, samples):
                branches.append(branch)
                if len(branches) > 1:
                    publish(_finding(lab, samples, branches, noise))
        except Expired:
            stopped = "budget"
        except KeyboardInterrupt:
            stopped = "interrupted"
    if len(branches) < 2:
        raise InputError(
            f"{stopped_after(stopped, lab.budget.seconds)} before two branches of {samples:,} samples from "
            f"{counted(lab.options.seeds, 'seed')} were trained: pass fewer --samples or --seeds, or a larger --budget",
            field="budget" if stopped == "budget" else None,
        )
    return _finding(lab, samples, branches, noise), stopped


def _branches(lab: Lab, base: int, state: dict[str, object], samples: int) -> Iterator[Branch]:
    """Ever larger batches, up to the first that does not hold."""
    first: list[float | None] = []
    for doubling in range(LARGEST + 1):
        k = 2**doubling
        if samples // (k * base) < LEAST_STEPS:
            return
        losses = [_branch(lab, base, k, state, samples, seed) for seed in range(1, lab.options.seeds + 1)]
        first = first or losses
        branch = _judged(lab, base, k, losses, first)
        yield branch
        if not branch.holds:
            return


def _finding(
    lab: Lab, samples: int, branches: list[Branch], noise: tuple[float | None, float | None]
) -> CriticalFinding:
    return CriticalFinding(
        samples=samples,
        seeds=lab.options.seeds,
        tolerance=lab.options.tolerance,
        smoothing=lab.options.smoothing,
        branches=tuple(branches),
        critical_batch=max(branch.batch for branch in branches if branch.holds),
        bounded=not branches[-1].holds,
        noise_scale=noise[0],
        noise_error=noise[1],
    )


def _judged(lab: Lab, base: int, k: int, losses: list[float | None], first: list[float | None]) -> Branch:
    """A branch against that at k = 1, seed by seed."""
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
        lr=lab.start_lr * factor(lab, k),
        loss=float(own.mean()) if np.isfinite(own).all() else None,
        error=error,
        holds=bool(np.isfinite(gaps).all() and gaps.mean() <= lab.options.tolerance),
    )


def factor(lab: Lab, k: int) -> float:
    """What multiplies the learning rate at k times the batch."""
    return float(k) if lab.plan.recipe.optimizer in ("sgd",) else math.sqrt(k)


def _asked(lab: Lab, base: int) -> int:
    """The samples of a branch: those that were asked for, or what the budget allows."""
    least = 2 * LEAST_STEPS * base
    if lab.options.samples is None:
        return _samples(lab, base, least)
    if lab.options.samples < least:
        raise InputError(
            f"samples must be at least {least:,}, so that a branch at twice the batch has {LEAST_STEPS} steps, got "
            f"{lab.options.samples:,}",
            field="samples",
        )
    return lab.options.samples


def _samples(lab: Lab, base: int, least: int) -> int:
    """The samples of a branch: about seven of them from each seed, and the start, in the budget; the largest worth trying has
    LEAST_STEPS steps."""
    fixed, each = lab.cost(base)
    count = 1 + 7 * lab.options.seeds
    left = float(lab.ranks.from_first(lab.budget.left()))
    beside = count * EVALUATIONS * fixed
    fitting = int((0.7 * left - beside) / (count * each)) if each else 2**30
    if fitting < least:
        needed = lab.budget.spent() + (beside + count * each * least) / 0.7
        raise InputError(
            f"{duration(lab.options.budget_seconds)} is too short: a branch needs {least:,} samples, which take "
            f"{duration(each * least)} here, and there are about {count}. Raise the budget to {budget_text(needed)}"
            f"{', or pass fewer --seeds' if lab.options.seeds > 1 else ''}",
            field="budget",
        )
    return int(lab.ranks.from_first(min(fitting, 256 * LEAST_STEPS * base)))


def _start(lab: Lab, base: int, samples: int) -> dict[str, object]:
    """The checkpoint, or weights and optimizer after a first training."""
    training = lab.training(base, 0)
    if lab.checkpoint is None:
        course = Course(lab.start_lr, max(1, samples // base), shape_of(lab.plan, constant=True))
        diverged, _ = run(training, lab.split(base), course)
        if diverged:
            raise InputError(
                f"the first training diverged at learning rate {lab.start_lr:g} and batch {base:,}: check the recipe's learning rate, "
                "or begin from a --checkpoint",
                field="workload",
            )
    return training.state()


def _branched(lab: Lab, base: int, state: dict[str, object], seed: int) -> Training:
    """A training that goes on from the state, on samples that the first one has not seen."""
    kept, lab.checkpoint = lab.checkpoint, state
    try:
        return lab.training(base, seed)
    finally:
        lab.checkpoint = kept


def _branch(lab: Lab, base: int, k: int, state: dict[str, object], samples: int, seed: int) -> float | None:
    """The smoothed loss of a branch; None where it diverged."""
    training, steps = _branched(lab, base, state, seed), samples // (k * base)
    lr, replicas = lab.start_lr * factor(lab, k), lab.split(k * base)
    marks = {round(steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS)}
    smoothed: float | None = None
    for step in range(1, steps + 1):
        if not np.isfinite(training.step(replicas, lr)):
            return None
        if step in marks:
            loss = float(np.mean(training.evaluate(lab.part)))
            weight = lab.options.smoothing
            smoothed = loss if smoothed is None else weight * smoothed + (1 - weight) * loss
    return smoothed if smoothed is not None and math.isfinite(smoothed) else None


def _noise(lab: Lab, base: int, state: dict[str, object]) -> tuple[float | None, float | None]:
    """The simple noise scale at the state: squared norms of the gradient of some samples, and of many."""
    small, many = base, 8
    training = _branched(lab, base, state, 1)
    local, averaged = [], []
    for _ in range(NOISE_STEPS):
        total: list[torch.Tensor] = []
        norms = []
        for _ in range(many):
            training.gradient(lab.split(small))
            found = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(training.trained, grads(training.model), strict=True)
            ]
            norms.append(sum(float(square(g)) for g in found))
            total = (
                [g.clone() for g in found]
                if not total
                else [t + g for t, g in zip(total, found, strict=True)]
            )
        local.append(float(np.mean(norms)))
        averaged.append(sum(float(square(t / many)) for t in total))
    scale, error, _, _ = noise_scale(np.array(local), np.array(averaged), small, many * small)
    return scale, error
