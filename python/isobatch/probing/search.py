"""Makes the trials that a search wants, until they are done or the budget is spent."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isobatch.errors import InputError
from isobatch.probing.concluding import SPARE, trials_of
from isobatch.probing.estimate import learned
from isobatch.probing.lab import Lab
from isobatch.probing.options import budget_text
from isobatch.probing.rounds import WIDE, Request, Rounds
from isobatch.probing.training import Expired
from isobatch.probing.trials import Trial
from isobatch.words import counted, duration, real

FIRST = 2 * WIDE + 1
"""Trials of a batch in the first round."""
LEAST_STEPS = 40
MOST_STEPS = 300
WORTH = 0.7
"""A trial is begun where so much of the time that it will likely take is left."""


class Search:
    """The trials of some batches.

    Args:
        lab: trains.
        say: called with a line of progress.
    """

    def __init__(self, lab: Lab, say: Callable[[str], None]) -> None:
        self.lab, self._say = lab, say
        self.rounds: Rounds | None = None
        self._seconds: dict[int, float] = {}

    def run(self) -> str | None:
        """All of them, or as many as there is time for.

        Returns:
            What ended them before they were done: "budget" or "interrupted"; None: nothing.

        Raises:
            InputError: the budget is too small for a round, the loss never moves, or every trial diverged.
        """
        try:
            whole = self.lab.begin(self._samples())
            self.rounds = Rounds(self.lab, self.lab.journal, whole, self._check_moving)
            for request in self.rounds.wanted():
                self._make(request)
        except Expired:
            return "budget"
        except KeyboardInterrupt:
            return "interrupted"
        return None

    def _samples(self) -> int:
        """The samples of a whole trial, by how long steps take and what the budget allows."""
        lab, options = self.lab, self.lab.options
        largest = max(lab.batches)
        unit = 4 * largest
        if options.samples is not None:
            if options.samples < unit:
                raise InputError(
                    f"samples must be at least {unit:,}, so that a quarter of them is a step at batch {largest:,}, got "
                    f"{options.samples:,}",
                    field="samples",
                )
            if lab.journal.samples not in (None, options.samples):
                raise InputError(
                    f"the trials in {options.trials} have {lab.journal.samples:,} samples, got {options.samples:,}: leave --samples "
                    "out, or name another file",
                    field="samples",
                )
            return options.samples
        if lab.journal.samples is not None:
            return lab.journal.samples
        trials, wholes = trials_of(options.seeds)
        costs = [lab.cost(batch) for batch in lab.batches]
        fixed, each = (sum(cost[part] for cost in costs) for part in (0, 1))
        left = float(lab.ranks.from_first(lab.budget.left()))
        least = self._least()
        fitting = (SPARE * left - fixed * trials) / (each * wholes) if each else math.inf
        if fitting < least:
            needed = lab.budget.seconds - left + (fixed * trials + each * wholes * least) / SPARE
            round_one = FIRST * fixed + each * FIRST / 4 * least
            if left < round_one:
                self._too_short(costs, len(costs) * FIRST, needed)
            self._say(
                f"All trials would take a budget of about {budget_text(needed)}: going as far as {duration(lab.budget.seconds)} last."
            )
        cap = MOST_STEPS * largest
        if lab.run_samples is not None and not lab.stand_in:
            cap = max(least, min(cap, lab.run_samples))
        # Whole steps at every batch of a power-of-two family, also of a quarter.
        return max(least, int(min(fitting, cap)) // unit * unit)

    def _least(self) -> int:
        """The samples that a trial has at least; no more than the run has."""
        lab = self.lab
        largest = max(lab.batches)
        unit, least = 4 * largest, LEAST_STEPS * largest
        if lab.run_samples is not None and not lab.stand_in:
            least = max(unit, min(least, lab.run_samples // unit * unit))
        return least

    def _too_short(self, costs: list[tuple[float, float]], trials: int, needed: float) -> None:
        lab = self.lab
        largest = max(lab.batches)
        least = self._least() // 4
        needed = float(lab.ranks.from_first(needed))
        raise InputError(
            f"{duration(lab.budget.seconds)} is too short for trials at "
            f"{'batch' if len(lab.batches) == 1 else 'batches'} {', '.join(f'{b:,}' for b in lab.batches)}: a trial of the first round "
            f"has {counted(least // largest, 'step')} at {largest:,}, which take {duration(costs[lab.batches.index(largest)][1] * least)} "
            f"here, and {duration(costs[lab.batches.index(largest)][0])} to begin and evaluate it; there are {counted(trials, 'trial')}. A "
            f"budget of {budget_text(needed)} would likely do for all",
            field="budget",
        )

    def _make(self, request: Request) -> Trial:
        """A trial: the journal's, or a new one."""
        lab = self.lab
        known = lab.journal.get(request.batch, request.lr, request.seed, request.samples)
        if known is not None:
            return known
        likely = WORTH * self._seconds.get(request.batch, 0.0) * request.samples
        if lab.ranks.from_first(lab.budget.left() < likely):
            raise Expired
        trial = lab.train(request.batch, request.lr, request.seed, request.samples)
        lab.keep(trial)
        if not trial.diverged:
            self._seconds[trial.batch] = trial.seconds / trial.samples
        came = "diverged" if trial.diverged else f"loss {trial.loss:.4f}"
        self._say(
            f"batch {trial.batch:,}, learning rate {real(trial.lr)}, seed {trial.seed}, {trial.samples:,} samples: {came} "
            f"({duration(max(lab.budget.left(), 0))} left)"
        )
        return trial

    def _check_moving(self, trials: list[Trial]) -> None:
        """A loss that no learning rate lowers says nothing of learning rates."""
        before = np.array(self.lab.first_losses())
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
