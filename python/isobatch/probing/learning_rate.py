"""The best learning rate at the tuned and the planned batch, by successive halving.

Learning rates are on one grid for each batch: the rule's × 2^i. First all batches are tried on a quarter of the samples, then the better
learning rates on a half, then the best one, its neighbours and the rule's on all of them, one seed after the other: whenever the budget
ends, all batches have come equally far, and the last round that is complete says what is known. Where the best one lies at the edge, the
grid grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from isobatch.errors import InputError
from isobatch.probing.estimate import (
    Doubt,
    Floats,
    Interval,
    LrFinding,
    Rates,
    TrialResult,
    exponent,
    interval,
    learned,
)
from isobatch.probing.lab import MAX_STEPS, MIN_STEPS, Lab
from isobatch.probing.options import Publish, budget_text
from isobatch.probing.training import PARTS
from isobatch.words import counted, duration, real

STEP = 2.0
"""Neighbouring learning rates differ by this factor."""
WIDE = 3
"""Steps of the grid to either side of the rule's learning rate."""
HALF = 4
"""Learning rates in the second round."""
MAX_EXTENSIONS = 6
FAR = 4.0
"""Short trials prefer a learning rate a few times as high: a tuned one farther than this from their interval was not tuned for this training."""


def measure_lr(lab: Lab, say: Callable[[str], None], publish: Publish) -> None:
    """Measures the learning rate to take at the planned batch; publishes each time that a round is complete.

    Raises:
        InputError: the budget is too small for a round, the loss never moves, or every trial diverged.
        Expired: the budget is spent.
    """
    _Search(lab, say, publish).run()


class _Search:
    """Makes the trials of each round, and concludes from the last complete one."""

    def __init__(self, lab: Lab, say: Callable[[str], None], publish: Publish) -> None:
        self.lab, self._say, self._publish = lab, say, publish
        self._trials: dict[tuple[int, int, int, int], TrialResult] = {}
        self._whole = 0

    def run(self) -> None:
        """Makes all rounds."""
        batches, seeds = self.lab.batches, self.lab.options.seeds
        self._whole = self._samples()
        quarter, half = self._whole // 4, self._whole // 2
        first = {batch: self._first_round(batch) for batch in batches}
        self._complete(quarter, 1, first)
        second = {batch: self._best(batch, first[batch], quarter, HALF) for batch in batches}
        for batch in batches:
            self._train(batch, second[batch], 0, half)
        self._complete(half, 1, second)
        last: dict[int, list[int]] = {}
        for batch in batches:
            (best,) = self._best(batch, second[batch], half, 1)
            last[batch] = sorted({best - 1, best, best + 1, 0})
        for seed in range(seeds):
            for batch in batches:
                self._train(batch, last[batch], seed, self._whole)
                if seed == 0:
                    self._extend(batch, last, 1, wide=False)
            self._complete(self._whole, seed + 1, last)
        for batch in batches:
            self._extend(batch, last, seeds, wide=True)
        self._complete(self._whole, seeds, last, done=True)

    def _samples(self) -> int:
        """Returns the samples of a whole trial, by the time of a step and the budget."""
        lab, asked = self.lab, self.lab.options.samples
        largest = max(lab.batches)
        unit = 4 * largest  # whole steps at every batch of a power-of-two family, also of a quarter
        if asked is not None:
            if asked < unit:
                raise InputError(
                    f"samples must be at least {unit:,}, so that a quarter of them is a step at batch {largest:,}, got {asked:,}",
                    field="samples",
                )
            return asked
        run = lab.run_samples if lab.run_samples is not None else MAX_STEPS * largest
        least = max(unit, min(MIN_STEPS * largest, run // unit * unit))
        counts = 2 * WIDE + 1, HALF, 3 * lab.options.seeds
        trials, wholes = sum(counts), counts[0] / 4 + counts[1] / 2 + counts[2]
        fitting = lab.fitting_samples(lab.batches, trials, wholes, least=least, first=counts[0] / 4 / wholes)
        if lab.needed_seconds is not None and lab.needed_seconds > lab.budget.seconds:
            needed = budget_text(lab.needed_seconds)
            self._say(
                f"All trials would take a budget of about {needed}: going as far as {duration(lab.budget.seconds)} last."
            )
        return max(least, int(min(fitting, MAX_STEPS * largest, run)) // unit * unit)

    def lr(self, batch: int, place: int) -> float:
        """Returns the learning rate at a place of a batch's grid."""
        return self.lab.plan_of(batch).require().lr * STEP**place

    def _train(self, batch: int, places: list[int], seed: int, samples: int) -> list[TrialResult]:
        """Makes the missing trials."""
        lab, made = self.lab, []
        for place in places:
            key = (batch, place, seed, samples)
            if key not in self._trials:
                trial = self._trials[key] = lab.train(batch, self.lr(batch, place), seed, samples)
                result = "diverged" if trial.diverged else f"loss {trial.loss:.4f}"
                self._say(
                    f"batch {batch:,}, learning rate {real(trial.lr)}, seed {seed}, {samples:,} samples: {result} "
                    f"({duration(max(lab.budget.left(), 0))} left)"
                )
            made.append(self._trials[key])
        return made

    def _rates(self, batch: int, places: list[int], samples: int, seeds: int) -> Rates:
        """Collects the losses at some places, infinite where a trial diverged."""
        rows = [
            [self._trials[batch, place, seed, samples].losses or (math.inf,) * PARTS for seed in range(seeds)]
            for place in places
        ]
        return Rates([self.lr(batch, place) for place in places], np.array(rows, np.float64))

    def _first_round(self, batch: int) -> list[int]:
        """Makes the first round of a batch; returns the places it tried. A grid that only diverges, or whose best one lies at an
        edge, grows: trials are short here."""
        samples, places = self._whole // 4, list(range(-WIDE, WIDE + 1))
        made = self._train(batch, places, 0, samples)
        if batch == self.lab.batches[0]:
            self._check_moving(made)
        for _ in range(MAX_EXTENSIONS):
            means = self._rates(batch, places, samples, 1).means
            best = int(np.argmin(means))
            if 0 < best < len(places) - 1 and np.isfinite(means[best]):
                break
            down = best == 0 or not np.isfinite(means[best])
            more = places[0] - 1 if down else places[-1] + 1
            self._train(batch, [more], 0, samples)
            places = sorted([*places, more])
        if not np.isfinite(self._rates(batch, places, samples, 1).means).any():
            low, high = self.lr(batch, places[0]), self.lr(batch, places[-1])
            raise InputError(
                f"every trial diverged at batch {batch:,}: {counted(len(places), 'learning rate')} from {real(low)} to "
                f"{real(high)}, {samples:,} samples each. Plan a smaller batch",
                field="batches",
            )
        return places

    def _best(self, batch: int, places: list[int], samples: int, most: int) -> list[int]:
        """Returns the places of the lowest losses, ascending."""
        means = self._rates(batch, places, samples, 1).means
        return sorted(places[i] for i in np.argsort(means, kind="stable")[:most])

    def _extend(self, batch: int, last: dict[int, list[int]], seeds: int, *, wide: bool) -> None:
        """Tries more places while the best one (`wide`: or its interval) reaches an edge or lies beside a gap."""
        for _ in range(MAX_EXTENSIONS):
            places = last[batch]
            rates = self._rates(batch, places, self._whole, seeds)
            best = places[int(np.argmin(rates.means))]
            needed = {best - 1, best + 1}
            if wide:
                ends = interval(rates.resampled(resamples=500)[0])
                needed |= {places[0] - 1} if ends[0] <= rates.logs[0] else set()
                needed |= {places[-1] + 1} if ends[1] >= rates.logs[-1] else set()
            more = sorted(needed - set(places))
            if not more:
                return
            for seed in range(seeds):
                self._train(batch, more, seed, self._whole)
            last[batch] = sorted([*places, *more])
            if wide:
                self._complete(self._whole, seeds, last)

    def _check_moving(self, trials: list[TrialResult]) -> None:
        """Refuses a loss that never falls: it says nothing of learning rates."""
        before = self.lab.first_losses
        ended = [trial for trial in trials if not trial.diverged]
        tried = f"learning rates {real(trials[0].lr)} to {real(trials[-1].lr)}, {trials[0].samples:,} samples each"
        if not ended:
            raise InputError(
                f"every trial diverged at batch {trials[0].batch:,}: tried {tried}; the loss began at {before.mean():.4g}. Check "
                "the recipe's learning rate, and that the workload makes its optimizer",
                field="workload",
            )
        best = min(ended, key=lambda trial: trial.loss)
        if not learned(before, np.array(best.losses)):
            raise InputError(
                f"the loss never moves: {before.mean():.6g} before, at best {best.loss:.6g} behind {tried}, on samples that are "
                "not trained on. Is there something to learn in it, and does the optimizer have the parameters? If a trial is too "
                "short to learn anything, raise --samples or --budget",
                field="workload",
            )

    def _complete(
        self, samples: int, seeds: int, places: dict[int, list[int]], *, done: bool = False
    ) -> None:
        """Publishes the finding of a complete round."""
        rates = {batch: self._rates(batch, places[batch], samples, seeds) for batch in self.lab.batches}
        for batch, one in rates.items():
            if not np.isfinite(one.means).any():
                raise InputError(f"every trial diverged at batch {batch:,}", field="workload")
        self._publish(partial(self._finding, samples, seeds, rates, done))

    def _finding(self, samples: int, seeds: int, rates: dict[int, Rates], done: bool) -> LrFinding:
        """Concludes from a round, by the losses at each batch."""
        lab = self.lab
        logs = {batch: one.resampled()[0] for batch, one in rates.items()}
        whole_run = self._is_whole_run(samples)
        lr, ends = self._to_take(rates, logs, whole_run=whole_run)
        plan_lr = lab.plan.require().lr
        slope, span = None, None
        if len(lab.batches) > 1:
            best = [math.log(rates[batch].best) for batch in lab.batches]
            slope, span = exponent(lab.batches, best, [logs[batch] for batch in lab.batches])
        return LrFinding(
            samples=samples,
            seeds=seeds,
            batches=tuple(rates[batch].summary(batch, self.lr(batch, 0)) for batch in lab.batches),
            lr=lr,
            interval=ends,
            plan_lr=plan_lr,
            within=ends[0] * (1 - 1e-9) <= plan_lr <= ends[1] * (1 + 1e-9),
            doubt=self._doubt(samples, seeds, rates, logs),
            whole_run=whole_run,
            exponent=slope,
            exponent_interval=span,
            complete=done,
            whole_samples=self._whole,
            asked_seeds=lab.options.seeds,
            trials=tuple(self._trials.values()),
        )

    def _to_take(
        self, rates: dict[int, Rates], logs: dict[int, Floats], *, whole_run: bool
    ) -> tuple[float, Interval]:
        """Returns the learning rate at the planned batch, and its interval."""
        first, planned = self.lab.tuned_batch, self.lab.planned_batch
        if whole_run or first == planned:
            return rates[planned].best, interval(np.exp(logs[planned]))
        tuned_lr = self.lab.start_lr
        low, high = interval(np.exp(logs[planned] - logs[first]))
        return tuned_lr * rates[planned].best / rates[first].best, (low * tuned_lr, high * tuned_lr)

    def _is_whole_run(self, samples: int) -> bool:
        """Tells whether trials are as long as the planned run, but for less than a step of each quarter."""
        lab = self.lab
        if lab.run_samples is None:
            return False
        return samples + 4 * max(lab.batches) > lab.run_samples

    def _doubt(
        self, samples: int, seeds: int, rates: dict[int, Rates], logs: dict[int, Floats]
    ) -> Doubt | None:
        """Returns why nothing should be done by these trials."""
        lab = self.lab
        if samples < self._whole or seeds == 1 < lab.options.seeds:
            return "short"
        if any(one.at_edge for one in rates.values()):
            return "edge"
        if lab.tuned_batch == lab.planned_batch or self._is_whole_run(samples):
            return None
        low, high = interval(np.exp(logs[lab.tuned_batch]))
        return None if low / FAR <= lab.start_lr <= high * FAR else "untuned"
