"""The critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971).

From one checkpoint branches go on at k times the batch, with the learning rate √k times as high for Adam and its family and k times for SGD,
each on the same number of samples, which its seed draws and the first training has not seen. The loss of a branch is smoothed by an
exponential average over evaluations at equal samples. A branch holds
where that ends at most `tolerance` above the branch at k = 1; the critical batch is the largest with all smaller ones holding.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from isobatch.probing.lab import Lab, own_randomness
from isobatch.probing.options import Publish
from isobatch.probing.training import diverges, lr_course, unusable
from isobatch.words import counted, figure

MAX_DOUBLINGS = 10
MIN_BRANCH_STEPS = 10
"""Of the largest branch."""
EVALUATIONS = 8
SMOOTHING = 0.5
"""The weight of the past in the average over a branch's evaluations."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """Judges a training continued at k times the batch: its smoothed loss at the end, the mean over seeds, None where one diverged; the
    standard error of its difference from k = 1, None from one seed; and whether it is within the tolerance."""

    k: int
    batch: int
    lr: float
    loss: float | None
    error: float | None
    holds: bool


class CriticalFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Gives the critical batch by branched training: the largest k with all below it holding. `bounded`: a larger one was tried and
    does not hold."""

    samples: int
    seeds: int
    tolerance: float
    branches: tuple[Branch, ...]
    critical_batch: int
    bounded: bool

    def lines(self, planned: int) -> list[str]:
        """Says the critical batch, and the branches behind it."""
        more = "" if self.bounded else ", or more: no larger one was tried that fails"
        if self.bounded and len(self.branches) == 2:
            more = ", or less: already twice the batch fails"
        lines = [
            f"Critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971): {self.critical_batch:,}{more}.",
            f"Next: {self._next(planned)}",
            f"Branches of {self.samples:,} samples and {counted(self.seeds, 'seed')} from one checkpoint; a branch holds where its "
            f"smoothed loss is at most {figure(self.tolerance)} above that at k = 1:",
        ]
        for one in self.branches:
            loss = "diverged" if one.loss is None else f"{one.loss:.4f}"
            error = "" if one.error is None or one.k == 1 else f" ± {one.error:.4f}"
            trained = (
                f"  k = {one.k}: batch {one.batch:,}, learning rate {figure(one.lr)}, loss {loss}{error}"
            )
            lines.append(f"{trained}, {'holds' if one.holds else 'does not hold'}")
        errors = [one.error for one in self.branches if one.error is not None]
        if not errors or max(errors) > self.tolerance / 2:
            lines.append(
                "Warning: the branches scatter by more than half the tolerance, or there is one seed only: take more --seeds, longer "
                "branches (--samples) or a larger --tolerance before you rely on it."
            )
        return lines

    def _next(self, planned: int) -> str:
        """Advises the next step."""
        if planned <= self.critical_batch:
            return f"train with the plan as it is: its batch of {planned:,} is not above that."
        if not self.bounded:
            return f"a larger --budget, so that larger batches are tried: the plan's {planned:,} was not."
        return (
            f"the plan's batch of {planned:,} is above that, where the same loss takes more samples: plan with --policy "
            f"{self.critical_batch}, or keep the tuned batch."
        )


def measure_critical(lab: Lab, say: Callable[[str], None], publish: Publish) -> None:
    """Measures the critical batch at weights first trained on as many samples as a branch: ever larger batches, up to the first failure.

    Raises:
        InputError: the budget is too small for the first two branches, or the first one diverges.
        Expired: the budget is spent.
    """
    base, samples, asked = lab.tuned_batch, _samples(lab), lab.options
    branches: list[Branch] = []
    first: list[float] = []
    with own_randomness():
        state = _start(lab, samples)
        for k in (2**doubling for doubling in range(MAX_DOUBLINGS + 1)):
            if samples // (k * base) < MIN_BRANCH_STEPS:
                return
            lr = lab.start_lr * (float(k) if lab.plan.recipe.optimizer == "sgd" else math.sqrt(k))
            losses = [_branch(lab, k * base, lr, state, samples, seed) for seed in range(1, asked.seeds + 1)]
            first = first or losses
            branches.append(_judged(k, k * base, lr, np.array(losses), np.array(first), asked.tolerance))
            loss, holds = branches[-1].loss, branches[-1].holds
            say(f"k = {k}: {'diverged' if loss is None else f'loss {loss:.4f}'}")
            if k > 1:
                most = max(one.batch for one in branches if one.holds)
                finding = partial(
                    CriticalFinding, samples=samples, seeds=asked.seeds, tolerance=asked.tolerance
                )
                publish(partial(finding, branches=tuple(branches), critical_batch=most, bounded=not holds))
            if not holds:
                return


def _judged(k: int, batch: int, lr: float, losses: Any, first: Any, tolerance: float) -> Branch:
    """Judges a branch against that at k = 1, seed by seed; NaN is a diverged loss."""
    if k == 1 and not np.isfinite(losses).all():
        raise unusable(f"the branch at k = 1 diverged at learning rate {lr:g}")
    gaps = losses - first
    ended = bool(np.isfinite(gaps).all())
    return Branch(
        k=k,
        batch=batch,
        lr=lr,
        loss=float(losses.mean()) if ended else None,
        error=float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if ended and len(gaps) > 1 else None,
        holds=ended and bool(gaps.mean() <= tolerance),
    )


def _samples(lab: Lab) -> int:
    """Returns the samples of a branch: the ones asked for, or as many as the budget allows for about seven branches from each seed, and
    the start; the largest worth trying has MIN_BRANCH_STEPS steps."""
    base, count = lab.tuned_batch, 1 + 7 * lab.options.seeds
    least = 2 * MIN_BRANCH_STEPS * base
    asked = lab.asked_samples(least, f"a branch at twice the batch has {MIN_BRANCH_STEPS} steps")
    if asked is not None:
        return asked
    return int(min(lab.fitting_samples([base], count * EVALUATIONS, count, least), 2**7 * least))


def _start(lab: Lab, samples: int) -> dict[str, Any]:
    """Returns weights and optimizer after a first training."""
    base = lab.tuned_batch
    training, steps = lab.training(base, 0), max(1, samples // base)
    if diverges(training, lab.split(base), steps, lr_course(lab.plan, lab.start_lr, steps, constant=True)):
        at = f"learning rate {lab.start_lr:g} and batch {base:,}"
        raise unusable(f"the first training diverged at {at}: check the recipe's learning rate")
    return training.state()


def _branch(lab: Lab, batch: int, lr: float, state: dict[str, Any], samples: int, seed: int) -> float:
    """Returns the smoothed loss of a branch; NaN where it diverged."""
    training, steps = lab.training(lab.tuned_batch, seed, checkpoint=state), samples // batch
    replicas = lab.split(batch)
    marks = {round(steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS)}
    smoothed = math.nan
    for step in range(1, steps + 1):
        if not np.isfinite(training.step(replicas, lr)):
            return math.nan
        if step in marks:
            loss = float(np.mean(training.evaluate(lab.part)))
            if not math.isfinite(loss):
                return math.nan
            smoothed = loss if math.isnan(smoothed) else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
    return smoothed
