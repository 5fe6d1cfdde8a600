"""The best learning rate at the tuned and the planned batch, by successive halving.

Learning rates are on one grid for each batch: the rule's × 2^i. First all batches are tried on a quarter of
the samples, then the better learning rates on a half, then the best one, its neighbours and the rule's on all
of them, one seed after the other: whenever the budget ends, all batches have come equally far, and the last
round that is complete says what is known. Where the best one lies at the edge, the grid grows.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from isobatch.errors import InputError
from isobatch.probing import estimate
from isobatch.probing.lab import MAX_STEPS, MIN_STEPS, Lab
from isobatch.probing.training import PARTS, unusable
from isobatch.words import duration, real

STEP = 2.0
"""Neighbouring learning rates differ by this factor."""
WIDE = 3
"""Steps of the grid to either side of the rule's learning rate."""
HALF = 4
"""Learning rates in the second round."""
MAX_EXTENSIONS = 6
FAR = 4.0
"""Short trials prefer a learning rate a few times as high: a tuned one farther than this from their interval
was not tuned for this training."""


class Search:
    """Makes the trials of each round. `finding` concludes from the last complete one: that takes time."""

    finding: Callable[[], estimate.LrFinding] | None = None

    def __init__(self, lab: Lab, say: Callable[[str], None]) -> None:
        self.lab, self._say = lab, say
        self._trials: dict[tuple[int, int, int, int], estimate.TrialResult] = {}
        self._whole = 0

    def run(self) -> None:
        """Makes all rounds."""
        batches, seeds = self.lab.batches, self.lab.options.seeds
        whole = self._whole = self._samples()
        places = {batch: list(range(-WIDE, WIDE + 1)) for batch in batches}
        for batch in batches:
            result = self._train(batch, places[batch], 0, whole // 4)
            if batch == batches[0]:
                self._check_moving(result)
            self._extend(batch, places, whole // 4, 1)
        self._complete(whole // 4, 1, places)
        places = {batch: self._best(batch, places[batch], whole // 4, HALF) for batch in batches}
        for batch in batches:
            self._train(batch, places[batch], 0, whole // 2)
        self._complete(whole // 2, 1, places)
        for batch in batches:
            (best,) = self._best(batch, places[batch], whole // 2, 1)
            places[batch] = sorted({best - 1, best, best + 1, 0})
        for seed in range(seeds):
            for batch in batches:
                self._train(batch, places[batch], seed, whole)
                if seed == 0:
                    self._extend(batch, places, whole, 1)
            self._complete(whole, seed + 1, places)
        for batch in batches:
            self._extend(batch, places, whole, seeds, wide=True)
        self._complete(whole, seeds, places, complete=True)

    def _samples(self) -> int:
        """Returns the samples of a whole trial: the requested ones, or as many as the budget allows."""
        lab, largest, requested = self.lab, max(self.lab.batches), self.lab.options.samples
        unit = 4 * largest  # whole steps at every batch of a power-of-two family, also of a quarter
        if requested is not None and requested < unit:
            why = f"so that a quarter of them is a step at batch {largest:,}"
            raise InputError(f"samples must be at least {unit:,}, {why}, got {requested:,}", field="samples")
        if requested is not None:
            return requested
        run = lab.run_samples if lab.run_samples is not None else MAX_STEPS * largest
        least = max(unit, min(MIN_STEPS * largest, run // unit * unit))
        counts = 2 * WIDE + 1, HALF, 3 * lab.options.seeds
        wholes = counts[0] / 4 + counts[1] / 2 + counts[2]
        fitting = lab.fitting_samples(lab.batches, sum(counts), wholes, least)
        return max(least, int(min(fitting, MAX_STEPS * largest, run)) // unit * unit)

    def lr(self, batch: int, place: int) -> float:
        """Returns the learning rate at a place of a batch's grid."""
        return self.lab.plan_of(batch).require().lr * STEP**place

    def _train(self, batch: int, places: list[int], seed: int, samples: int) -> list[estimate.TrialResult]:
        """Makes the missing trials."""
        lab, results = self.lab, []
        for place in places:
            key = (batch, place, seed, samples)
            if key not in self._trials:
                trial = self._trials[key] = lab.train(batch, self.lr(batch, place), seed, samples)
                result = "diverged" if trial.diverged else f"loss {trial.loss:.4f}"
                self._say(
                    f"batch {batch:,}, learning rate {real(trial.lr)}, seed {seed}, {samples:,} samples: "
                    f"{result} ({duration(max(lab.budget.left(), 0))} left)"
                )
            results.append(self._trials[key])
        return results

    def _rates(self, batch: int, places: list[int], samples: int, seeds: int) -> estimate.Rates:
        """Collects the losses at some places, infinite where a trial diverged."""
        rows = [
            [self._trials[batch, place, seed, samples].losses or (math.inf,) * PARTS for seed in range(seeds)]
            for place in places
        ]
        return estimate.Rates([self.lr(batch, place) for place in places], np.array(rows, np.float64))

    def _best(self, batch: int, places: list[int], samples: int, most: int) -> list[int]:
        """Returns the places of the lowest losses, ascending."""
        means = self._rates(batch, places, samples, 1).means
        return sorted(places[i] for i in np.argsort(means, kind="stable")[:most])

    def _extend(
        self, batch: int, grids: dict[int, list[int]], samples: int, seeds: int, *, wide: bool = False
    ) -> None:
        """Tries more learning rates while the best one (`wide`: its interval) is at an edge."""
        for _ in range(MAX_EXTENSIONS):
            places = grids[batch]
            rates = self._rates(batch, places, samples, seeds)
            best = places[int(np.argmin(rates.means))]
            needed = {best - 1, best + 1}
            if wide:
                ends = estimate.interval(rates.resampled(500)[0])
                needed |= {places[0] - 1} if ends[0] <= rates.logs[0] else set()
                needed |= {places[-1] + 1} if ends[1] >= rates.logs[-1] else set()
            more = sorted(needed - set(places))
            if not more:
                return
            for seed in range(seeds):
                self._train(batch, more, seed, samples)
            grids[batch] = sorted([*places, *more])
            if wide:
                self._complete(samples, seeds, grids)

    def _check_moving(self, trials: list[estimate.TrialResult]) -> None:
        """Refuses a loss without any fall: it says nothing of learning rates."""
        before, best = self.lab.first_losses, min(trials, key=lambda trial: trial.loss)
        rates = f"{real(trials[0].lr)} to {real(trials[-1].lr)}"
        tried = f"learning rates {rates}, {trials[0].samples:,} samples each"
        if not best.diverged and not estimate.learned(before, np.array(best.losses)):
            raise unusable(
                f"the loss never moves: {before.mean():.6g} before, at best {best.loss:.6g} behind {tried}, "
                "on samples that are not trained on. Is there something to learn in it, and does the "
                "optimizer have the parameters? If a trial is too short to learn anything, raise --samples "
                "or --budget"
            )

    def _complete(
        self, samples: int, seeds: int, places: dict[int, list[int]], *, complete: bool = False
    ) -> None:
        """Sets the finding of a complete round."""
        rates = {batch: self._rates(batch, places[batch], samples, seeds) for batch in self.lab.batches}
        for batch, batch_rates in rates.items():
            if not np.isfinite(batch_rates.means).any():
                low, high = self.lr(batch, places[batch][0]), self.lr(batch, places[batch][-1])
                tried = f"learning rates from {real(low)} to {real(high)}, {samples:,} samples each"
                todo = "Plan a smaller batch, or check the recipe's learning rate"
                raise unusable(f"every trial diverged at batch {batch:,}: {tried}. {todo}")
        self.finding = partial(self._finding, samples, seeds, rates, complete)

    def _finding(
        self, samples: int, seeds: int, rates: dict[int, estimate.Rates], complete: bool
    ) -> estimate.LrFinding:
        """Concludes from a round, by the losses at each batch."""
        lab, planned = self.lab, self.lab.planned_batch
        drawn = {batch: batch_rates.resampled() for batch, batch_rates in rates.items()}
        logs = {batch: both[0] for batch, both in drawn.items()}
        # As long as the planned run, but for less than a step of each quarter.
        run_samples = lab.run_samples
        whole_run = run_samples is not None and samples + 4 * max(lab.batches) > run_samples
        ratios = not whole_run and lab.tuned_batch != planned
        lr, ends = rates[planned].best, estimate.interval(np.exp(logs[planned]))
        if ratios:
            low, high = estimate.interval(np.exp(logs[planned] - logs[lab.tuned_batch]))
            lr, ends = (
                lab.start_lr * lr / rates[lab.tuned_batch].best,
                (low * lab.start_lr, high * lab.start_lr),
            )
        plan_lr, slope, span = lab.plan.require().lr, None, None
        if len(lab.batches) > 1:
            best = [math.log(batch_rates.best) for batch_rates in rates.values()]
            slope, span = estimate.exponent(lab.batches, best, [*logs.values()])
        return estimate.LrFinding(
            samples=samples,
            seeds=seeds,
            batches=tuple(rates[size].summary(size, self.lr(size, 0), drawn[size]) for size in lab.batches),
            lr=lr,
            interval=ends,
            plan_lr=plan_lr,
            within=ends[0] * (1 - 1e-9) <= plan_lr <= ends[1] * (1 + 1e-9),
            doubt=self._doubt(samples, seeds, rates, logs[lab.tuned_batch] if ratios else None),
            whole_run=whole_run,
            exponent=slope,
            exponent_interval=span,
            complete=complete,
            whole_samples=self._whole,
            asked_seeds=lab.options.seeds,
            trials=tuple(self._trials.values()),
        )

    def _doubt(
        self, samples: int, seeds: int, rates: dict[int, estimate.Rates], tuned_logs: estimate.Floats | None
    ) -> estimate.Doubt | None:
        """Returns why nothing should be complete by these trials; `tuned_logs` where a ratio is taken."""
        if samples < self._whole or seeds == 1 < self.lab.options.seeds:
            return "short"
        if any(batch_rates.at_edge for batch_rates in rates.values()):
            return "edge"
        if tuned_logs is None:
            return None
        low, high = estimate.interval(np.exp(tuned_logs))
        return None if low / FAR <= self.lab.start_lr <= high * FAR else "untuned"
