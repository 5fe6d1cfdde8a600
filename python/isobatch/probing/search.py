"""The best learning rate at some batches, by successive halving under a budget.

At each batch a grid around the rule's learning rate is trained on a quarter of the samples, the better ones on a half, and the best one, its
neighbours and the rule's on all of them, from several seeds. Where the best one lies at the edge, the grid grows. Each trial is a whole
short training with its own decay, from scratch or the checkpoint: prefixes of longer ones would prefer what has not decayed yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isobatch.errors import InputError
from isobatch.probing.estimate import Floats, Rates, exponent, interval, learned
from isobatch.probing.lab import Lab
from isobatch.probing.report import BatchRates, LrFinding, Rate
from isobatch.probing.training import PARTS, Expired
from isobatch.probing.trials import Trial
from isobatch.words import counted, duration, real

WIDE = 3
"""Steps of the grid to either side of the rule's learning rate."""
HALF = 4
"""Learning rates in the second round."""
EXTENSIONS = 6
LEAST_STEPS = 40
MOST_STEPS = 300
RESERVE = 0.6
"""Of the budget, what is planned for: the rest is for grids that grow and for a machine that others use."""


class Search:
    """The trials of some batches.

    Args:
        lab: trains.
        batches: the tuned one first; the rest have the rule's learning rate relative to it.
        say: called with a line of progress.
    """

    def __init__(self, lab: Lab, batches: list[int], say: Callable[[str], None]) -> None:
        self.lab, self.batches, self._say = lab, batches, say
        self._finals: dict[int, list[float]] = {}
        self._centres: dict[int, float] = {}

    def run(self) -> LrFinding:
        """All of it.

        Raises:
            InputError: the budget is too small, the loss is not finite from the start, or it never moves.
        """
        whole = self.lab.journal.begin(self._samples())
        try:
            for batch in self.batches:
                self._search(batch, whole)
        except Expired:
            self._too_late(whole)
        return self._finding(whole)

    def _samples(self) -> int:
        """The samples of a whole trial, by how long steps take and what the budget allows."""
        lab, options = self.lab, self.lab.options
        if lab.journal.samples is not None:
            return lab.journal.samples
        if options.samples is not None:
            return options.samples
        per_seed = 2 * WIDE + 1, HALF, 3 * options.seeds
        trials, wholes = sum(per_seed), per_seed[0] / 4 + per_seed[1] / 2 + per_seed[2]
        costs = [lab.cost(batch) for batch in self.batches]
        largest = max(self.batches)
        fixed, each = (sum(cost[part] for cost in costs) for part in (0, 1))
        left = RESERVE * lab.seconds_left()
        fitting = (left - fixed * trials) / (each * wholes) if each else math.inf
        least = LEAST_STEPS * largest
        if fitting < least:
            needed = (fixed * trials + each * wholes * least) / RESERVE
            spent = options.budget_seconds - lab.seconds_left()
            raise InputError(
                f"{duration(options.budget_seconds)} is too short for trials at "
                f"{'batch' if len(self.batches) == 1 else 'batches'} {', '.join(f'{b:,}' for b in self.batches)}: {LEAST_STEPS} "
                f"steps at {largest:,} take {duration(costs[self.batches.index(largest)][1] * least)} here, and "
                f"{counted(len(self.batches) * trials, 'trial')} need about {duration(needed + spent)}. Raise the budget, or pass "
                "fewer seeds",
                field="budget",
            )
        cap = MOST_STEPS * largest
        if lab.run_samples is not None and not lab.stand_in:
            cap = min(cap, max(lab.run_samples, least))
        return int(lab.ranks.from_first(min(int(fitting), cap)))

    def _search(self, batch: int, whole: int) -> None:
        """The rounds of one batch."""
        step, seeds = self.lab.options.step, self.lab.options.seeds
        centre = self._centre(batch)
        self._centres[batch] = centre
        lrs = [centre * step**i for i in range(-WIDE, WIDE + 1)]
        quarter = [self._trial(batch, lr, 0, whole // 4) for lr in lrs]
        if batch == self.batches[0]:
            self._check_moving(quarter)
        keep = sorted(sorted(range(len(lrs)), key=lambda i: quarter[i].loss)[:HALF])
        half = {i: self._trial(batch, lrs[i], 0, whole // 2) for i in keep}
        best = min(half, key=lambda i: half[i].loss)
        around = {best - 1, best, best + 1, 0 if self.lab.stand_in and batch == self.batches[0] else WIDE}
        if self.lab.stand_in and batch == self.batches[0]:
            around.discard(0)  # there the centre is no rule's
        steps = sorted(i - WIDE for i in around)
        self._finals[batch] = [centre * step**i for i in steps]
        for seed in range(seeds):
            for i in steps:
                self._trial(batch, centre * step**i, seed, whole)
        self._extend(batch, whole, steps)

    def _extend(self, batch: int, whole: int, steps: list[int]) -> None:
        """More learning rates while the best one or its interval reaches an edge, or lies beside a gap in the grid."""
        step, seeds, centre = self.lab.options.step, self.lab.options.seeds, self._centres[batch]
        for _ in range(EXTENSIONS):
            rates = self._rates(batch, whole)
            best = steps[int(np.argmin(rates.means))]
            ends = interval(rates.resampled(resamples=500)[0])
            beyond = {steps[0] - 1} if ends[0] <= rates.logs[0] else set()
            beyond |= {steps[-1] + 1} if ends[1] >= rates.logs[-1] else set()
            wanted = sorted({best - 1, best + 1, *beyond} - set(steps))
            if not wanted:
                return
            for i in wanted:
                for seed in range(seeds):
                    self._trial(batch, centre * step**i, seed, whole)
                steps = sorted([*steps, i])
                self._finals[batch] = [centre * step**j for j in steps]

    def _centre(self, batch: int) -> float:
        """Where the grid of a batch lies: at the tuned learning rate, and for other batches at what the rule makes of the best one."""
        first = self.batches[0]
        if batch == first:
            return self.lab.start_lr
        scale = self.lab.plan_of(batch).require().lr / self.lab.plan_of(first).require().lr
        return self._anchor() * scale

    def _anchor(self) -> float:
        """The tuned learning rate, or of the built-in workload, whose learning rate nobody has tuned, the best one tried."""
        first = self.batches[0]
        if not self.lab.stand_in:
            return self.lab.start_lr
        return float(np.exp(self._rates(first, self.lab.journal.samples or 0).logs[self._lowest(first)]))

    def _lowest(self, batch: int) -> int:
        return int(np.argmin(self._rates(batch, self.lab.journal.samples or 0).means))

    def _trial(self, batch: int, lr: float, seed: int, samples: int) -> Trial:
        known = self.lab.journal.get(batch, lr, seed, samples)
        if known is not None:
            return known
        trial = self.lab.train(batch, lr, seed, samples)
        self.lab.journal.add(trial)
        came = "diverged" if trial.diverged else f"loss {trial.loss:.4f}"
        self._say(f"batch {batch:,}, learning rate {real(lr)}, seed {seed}, {samples:,} samples: {came}")
        return trial

    def _check_moving(self, trials: list[Trial]) -> None:
        """A loss that no learning rate lowers says nothing of learning rates."""
        before = np.array(self.lab.first_losses())
        ended = [trial for trial in trials if not trial.diverged]
        tried = f"learning rates {real(trials[0].lr)} to {real(trials[-1].lr)}, {trials[0].samples:,} samples each"
        if not ended:
            raise InputError(
                f"every trial diverged at batch {trials[0].batch:,}: tried {tried}; the loss began at {before.mean():.4g}. Check "
                "the recipe's learning rate",
                field="workload",
            )
        best = min(ended, key=lambda trial: trial.loss)
        if not learned(before, np.array(best.losses)):
            raise InputError(
                f"the loss never moves: {before.mean():.6g} before, at best {best.loss:.6g} behind {tried}, on samples that are "
                "not trained on. Is there something to learn in it, and does the optimizer have the parameters?",
                field="workload",
            )

    def _too_late(self, whole: int) -> None:
        """The budget is spent: goes on where each batch has its last trials, else says what is missing."""
        complete = [batch for batch in self.batches if self._complete(batch, whole)]
        if len(complete) == len(self.batches):
            return
        made, path = len(self.lab.journal.found), self.lab.options.trials
        advice = (
            f"{counted(made, 'trial')} kept in {path}: the same command goes on from there"
            if path is not None
            else f"{counted(made, 'trial')} made; --trials FILE keeps them for another run"
        )
        lacking = next(batch for batch in self.batches if batch not in complete)
        raise InputError(
            f"{duration(self.lab.options.budget_seconds)} were spent before batch {lacking:,} was measured. {advice}",
            field="budget",
        )

    def _complete(self, batch: int, whole: int) -> bool:
        wanted = self._finals.get(batch, [])
        seeds = range(self.lab.options.seeds)
        return bool(wanted) and all(
            self.lab.journal.get(batch, lr, seed, whole) is not None for lr in wanted for seed in seeds
        )

    def _rates(self, batch: int, whole: int) -> Rates:
        rows = []
        for lr in self._finals[batch]:
            trials = [self.lab.journal.get(batch, lr, seed, whole) for seed in range(self.lab.options.seeds)]
            rows.append(
                [t.losses if t is not None and not t.diverged else (math.inf,) * PARTS for t in trials]
            )
        return Rates(self._finals[batch], np.array(rows, np.float64))

    def _finding(self, whole: int) -> LrFinding:
        """What the trials say."""
        lab, rates = self.lab, {batch: self._rates(batch, whole) for batch in self.batches}
        for batch, one in rates.items():
            if not np.isfinite(one.means).any():
                raise InputError(f"every trial diverged at batch {batch:,}", field="workload")
        drawn = {batch: one.resampled()[0] for batch, one in rates.items()}
        first, planned = self.batches[0], lab.plan.require().effective_batch
        tuned_lr, plan_lr = lab.plan_of(first).require().lr, lab.plan.require().lr
        if first == planned:
            if lab.stand_in:
                factor = (
                    tuned_lr / rates[first].best
                )  # the built-in workload says nothing of the tuned learning rate
                lr, ends = tuned_lr, _times(interval(np.exp(drawn[first])), factor)
            else:
                lr, ends = rates[first].best, interval(np.exp(drawn[first]))
        else:
            lr = tuned_lr * rates[planned].best / rates[first].best
            ends = _times(interval(np.exp(drawn[planned] - drawn[first])), tuned_lr)
        slope, span = None, None
        if len(self.batches) > 1:
            best = [math.log(rates[batch].best) for batch in self.batches]
            slope, span = exponent(self.batches, best, [drawn[batch] for batch in self.batches])
        return LrFinding(
            samples=whole,
            seeds=lab.options.seeds,
            batches=tuple(self._of(batch, rates[batch], drawn[batch]) for batch in self.batches),
            lr=lr,
            interval=ends,
            plan_lr=plan_lr,
            within=ends[0] * (1 - 1e-9) <= plan_lr <= ends[1] * (1 + 1e-9),
            exponent=slope,
            exponent_interval=span,
        )

    def _of(self, batch: int, rates: Rates, drawn: Floats) -> BatchRates:
        rule_lr = self._anchor() if batch == self.batches[0] else self._centres[batch]
        gap = rates.gap(rule_lr)
        return BatchRates(
            batch=batch,
            best_lr=rates.best,
            interval=interval(np.exp(drawn)),
            at_edge=rates.at_edge,
            rule_lr=rule_lr,
            rule_gap=None if gap is None else gap[0],
            rule_gap_interval=None if gap is None else gap[1],
            rates=tuple(
                Rate(lr=float(np.exp(log)), loss=float(mean) if np.isfinite(mean) else None)
                for log, mean in zip(rates.logs, rates.means, strict=True)
            ),
        )


def _times(ends: tuple[float, float], factor: float) -> tuple[float, float]:
    return ends[0] * factor, ends[1] * factor
