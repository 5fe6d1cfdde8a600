"""The findings of a probe: learning rates, sameness, the critical batch. No torch."""

from __future__ import annotations

from typing import Literal

import msgspec

Doubt = Literal["short", "edge", "untuned"]
"""Why nothing should be done by a learning rate: its trials are not whole, or of one seed where more were asked for; the best one at a batch is the
last one tried; or the recipe's is far from the best one at its own batch, so that a ratio to it says nothing."""
Interval = tuple[float, float]


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Records one short training: its effective batch, peak learning rate, seed, samples, and the losses on each part of the evaluation
    samples; none where it diverged."""

    batch: int
    lr: float
    seed: int
    samples: int
    losses: tuple[float, ...]
    steps: int
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether it was stopped because its loss grew, or was not finite."""
        return not self.losses

    @property
    def loss(self) -> float:
        """The mean over the evaluation samples; infinity where it diverged."""
        return sum(self.losses) / len(self.losses) if self.losses else float("inf")


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Gives one learning rate at one batch: the mean loss over seeds and its 95 % interval, None where it diverged."""

    lr: float
    loss: float | None
    interval: Interval | None


class BatchRates(msgspec.Struct, frozen=True, kw_only=True):
    """Summarizes the trials at one batch.

    `best_lr` is that of these short trainings, `interval` its 95 % interval; `at_edge`: the best one may lie beyond those tried.
    `rule_lr` is the tuned batch's by the rule.
    """

    batch: int
    best_lr: float
    interval: Interval
    at_edge: bool
    rule_lr: float
    rates: tuple[Rate, ...]


class LrFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Names the learning rate to take at the planned batch.

    Where the tuned batch was measured too, `lr` is the tuned learning rate × the ratio of the two best ones: a short training
    prefers another learning rate than a long one, and the ratio does not see that. Where trials are as long as the run itself
    (`whole_run`), it is the best one. `within`: the plan's own lies in the interval. `doubt`: why nothing should be done by it.
    `exponent`: of the best learning rate over the batch, None from one batch. Where the trials ended early (`complete` is false)
    `samples` and `seeds` may be fewer than `whole_samples` and `asked_seeds`. `trials` are all that were made.
    """

    samples: int
    seeds: int
    batches: tuple[BatchRates, ...]
    lr: float
    interval: Interval
    plan_lr: float
    within: bool
    doubt: Doubt | None
    whole_run: bool
    exponent: float | None
    exponent_interval: Interval | None
    complete: bool
    whole_samples: int
    asked_seeds: int
    trials: tuple[TrialResult, ...]


class SplitFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Compares a split of the batch: how far its weights are from those of the batch on one replica, relative L2, in double precision."""

    split: str
    difference: float
    same: bool


class SameFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Tells whether the plan trains the same as the tuned recipe: by weights where the batch stays, by loss where it grows (then with the samples
    of a training and the seeds). `missing` are splits that nobody trained before the budget ended."""

    steps: int
    splits: tuple[SplitFinding, ...]
    missing: tuple[str, ...]
    gap: float | None = None
    gap_interval: Interval | None = None
    tuned_loss: float | None = None
    planned_loss: float | None = None
    samples: int | None = None
    seeds: int = 1

    @property
    def same(self) -> bool:
        """Whether every split trains the same: all of them were trained, and none differs."""
        return not self.missing and all(split.same for split in self.splits)


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
    does not hold. Beside it the simple noise scale at the same weights, None where it could not be measured."""

    samples: int
    seeds: int
    tolerance: float
    branches: tuple[Branch, ...]
    critical_batch: int
    bounded: bool
    noise_scale: float | None
    noise_error: float | None
