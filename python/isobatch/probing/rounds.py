"""Which trials a search wants, in turn, as a function of those that were made. No torch.

Learning rates are on one grid for each batch: the rule's × step^i. First all batches are tried on a quarter of the samples, then the better
learning rates on a half, then the best one, its neighbours and the rule's on all of them, one seed after the other: whenever the budget
ends, all batches have come equally far, and the last round that is complete says what is known. Where the best one lies at the edge, the
grid grows. The same trials always lead to the same next one, so that a killed search goes on, and who only has its file reads the
finding out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator

import msgspec
import numpy as np

from isobatch.errors import InputError
from isobatch.probing.estimate import Rates, interval
from isobatch.probing.scope import Scope
from isobatch.probing.trials import PARTS, Journal, Trial
from isobatch.words import counted, real

WIDE = 3
"""Steps of the grid to either side of the rule's learning rate."""
HALF = 4
"""Learning rates in the second round."""
EXTENSIONS = 6


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that is wanted."""

    batch: int
    lr: float
    seed: int
    samples: int


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A round that is complete: the samples of its trials, how many seeds, and each batch's places on the grid."""

    samples: int
    seeds: int
    places: dict[int, tuple[int, ...]]


class Rounds:
    """The trials of some batches.

    Args:
        scope: the batches, their plans and where the search begins.
        journal: the trials that were made.
        whole: samples of a whole trial.
        check: called with the first batch's first trials.
    """

    def __init__(
        self,
        scope: Scope,
        journal: Journal,
        whole: int,
        check: Callable[[list[Trial]], None] | None = None,
    ) -> None:
        self.scope, self.journal, self.whole, self._check = scope, journal, whole, check
        self.round: Round | None = None
        self.done = False

    def wanted(self) -> Iterator[Request]:
        """The trials, in turn; each must be in the journal when the next one is asked for.

        Raises:
            InputError: every trial diverged at a batch, or what `check` raises.
        """
        batches, seeds = self.scope.batches, self.scope.options.seeds
        first: dict[int, list[int]] = {}
        for batch in batches:
            first[batch] = yield from self._first(batch, first)
        self._reached(self.whole // 4, 1, first)
        half = {batch: self._best(batch, first[batch], self.whole // 4, HALF) for batch in batches}
        for batch in batches:
            yield from self._trials(batch, half[batch], [0], self.whole // 2)
        self._reached(self.whole // 2, 1, half)
        last: dict[int, list[int]] = {}
        for batch in batches:
            (best,) = self._best(batch, half[batch], self.whole // 2, 1)
            rule = self._rule(half, self.whole // 2, 1)
            last[batch] = sorted({best - 1, best, best + 1, rule})
        for seed in range(seeds):
            for batch in batches:
                yield from self._trials(batch, last[batch], [seed], self.whole)
                if seed == 0:
                    yield from self._extended(batch, last, 1, wide=False)
            self._reached(self.whole, seed + 1, last)
        for batch in batches:
            yield from self._extended(batch, last, seeds, wide=True)
        self.done = True

    def lr(self, batch: int, place: int) -> float:
        """The learning rate at a place of a batch's grid."""
        scope = self.scope
        return scope.start_lr * scope.scale(batch) * scope.options.step**place

    def rates(self, batch: int, places: list[int], samples: int, seeds: int) -> Rates:
        """The losses at some places, infinite where a trial diverged."""
        rows = []
        for place in places:
            made = [self.journal.get(batch, self.lr(batch, place), seed, samples) for seed in range(seeds)]
            rows.append([t.losses if t is not None and not t.diverged else (math.inf,) * PARTS for t in made])
        return Rates([self.lr(batch, place) for place in places], np.array(rows, np.float64))

    def rule_place(self) -> int:
        """Where the rule's learning rate is on every batch's grid: where the tuned one is, 0; but nobody has tuned the built-in
        workload, so there it is where the tuned batch has its lowest loss."""
        found = self.round
        if found is None:
            return 0
        return self._rule({b: list(places) for b, places in found.places.items()}, found.samples, found.seeds)

    def _rule(self, places: dict[int, list[int]], samples: int, seeds: int) -> int:
        first = self.scope.batches[0]
        if not self.scope.stand_in or first not in places:
            return 0
        means = self.rates(first, places[first], samples, seeds).means
        return places[first][int(np.argmin(means))]

    def _reached(self, samples: int, seeds: int, places: dict[int, list[int]]) -> None:
        copied = {batch: tuple(found) for batch, found in places.items()}
        self.round = Round(samples=samples, seeds=seeds, places=copied)

    def _trials(self, batch: int, places: list[int], seeds: list[int], samples: int) -> Iterator[Request]:
        for seed in seeds:
            for place in places:
                yield Request(batch=batch, lr=self.lr(batch, place), seed=seed, samples=samples)

    def _first(self, batch: int, before: dict[int, list[int]]) -> Generator[Request, None, list[int]]:
        """The first round of a batch; returns the places that were tried. A grid that only diverges, or whose best one lies at an
        edge, grows: trials are short here."""
        samples = self.whole // 4
        centre = self._rule(before, samples, 1)
        places = list(range(centre - WIDE, centre + WIDE + 1))
        yield from self._trials(batch, places, [0], samples)
        if batch == self.scope.batches[0] and self._check is not None:
            made = [self.journal.get(batch, self.lr(batch, place), 0, samples) for place in places]
            self._check([trial for trial in made if trial is not None])
        for _ in range(EXTENSIONS):
            means = self.rates(batch, places, samples, 1).means
            best = int(np.argmin(means))
            if 0 < best < len(places) - 1 and np.isfinite(means[best]):
                break
            down = best == 0 or not np.isfinite(means[best])
            more = places[0] - 1 if down else places[-1] + 1
            yield from self._trials(batch, [more], [0], samples)
            places = sorted([*places, more])
        if not np.isfinite(self.rates(batch, places, samples, 1).means).any():
            low, high = self.lr(batch, places[0]), self.lr(batch, places[-1])
            raise InputError(
                f"every trial diverged at batch {batch:,}: {counted(len(places), 'learning rate')} from {real(low)} to "
                f"{real(high)}, {samples:,} samples each. Plan a smaller batch, or begin from a --checkpoint",
                field="batches",
            )
        return places

    def _best(self, batch: int, places: list[int], samples: int, most: int) -> list[int]:
        """The places of the lowest losses, ascending."""
        means = self.rates(batch, places, samples, 1).means
        return sorted(places[i] for i in np.argsort(means, kind="stable")[:most])

    def _extended(
        self, batch: int, last: dict[int, list[int]], seeds: int, *, wide: bool
    ) -> Iterator[Request]:
        """More places while the best one (`wide`: or its interval) reaches an edge, lies beside a gap, or the rule's is missing."""
        for _ in range(EXTENSIONS):
            places = last[batch]
            rates = self.rates(batch, places, self.whole, seeds)
            best = places[int(np.argmin(rates.means))]
            needed = {best - 1, best + 1}
            if all(other in last for other in self.scope.batches):
                needed.add(self._rule(last, self.whole, seeds))
            if wide:
                ends = interval(rates.resampled(resamples=500)[0])
                needed |= {places[0] - 1} if ends[0] <= rates.logs[0] else set()
                needed |= {places[-1] + 1} if ends[1] >= rates.logs[-1] else set()
            more = sorted(needed - set(places))
            if not more:
                return
            yield from self._trials(batch, more, list(range(seeds)), self.whole)
            last[batch] = sorted([*places, *more])
            if wide:
                self._reached(self.whole, seeds, last)
