"""Splits of a batch over ranks, accumulation and micro-batch, and the choice of splits to compare."""

import re
from collections.abc import Iterator
from typing import NamedTuple, Self

import msgspec

from isobatch.errors import InputError, must_be

MAX_RANKS = 4
"""Processes of one start: more share two cores without showing another cause."""
MAX_SAMPLES = 16
"""Samples of a compared step, which the one-by-one run passes through one after the other."""
_SPLIT = re.compile(r"([1-9]\d{0,8})[x×]([1-9]\d{0,8})[x×]([1-9]\d{0,8})")


class Split(msgspec.Struct, frozen=True):
    """A split of a step's samples over ranks, passes of a rank (accumulation), and samples of a pass.

    >>> str(Split(2, 4, 3)), Split(2, 4, 3).effective_batch
    ('2x4x3', 24)
    """

    ranks: int
    accumulation: int
    micro_batch: int

    @property
    def effective_batch(self) -> int:
        """Samples of a step over all ranks."""
        return self.ranks * self.accumulation * self.micro_batch

    @property
    def rank_batch(self) -> int:
        """Samples of a step on one rank."""
        return self.accumulation * self.micro_batch

    def __str__(self) -> str:
        return f"{self.ranks}x{self.accumulation}x{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a split as it is typed, such as 2x4x3."""
        numbers = _SPLIT.fullmatch(text.strip().lower())
        if numbers is None:
            raise must_be("RANKSxACCUMULATIONxMICRO_BATCH, such as 2x2x2", text, field="--split")
        return cls(*map(int, numbers.groups()))


DEFAULT = Split(2, 3, 2)
"""The split of a command that names none: its ranks, its accumulation and their product are three different
factors."""


class Splits(NamedTuple):
    """The splits to compare with the requested one: one pass, one sample a pass, and others."""

    whole: Split
    single: Split
    further: tuple[Split, ...]


def choose_splits(requested: Split) -> Splits:
    """Chooses splits of a batch to tell the causes of a wrong weight apart.

    Beside the requested split a step is taken with accumulation alone, with ranks alone, and with both, where
    the batch divides: a factor that appears in one of them names its cause. Within a split unequal numbers
    are preferred, since a weight of 2 at 2x2x2 may come from the ranks, the accumulation or the micro-batch;
    at 2x4x3 it can only come from the ranks. Two ranks are preferred to more, which cost a process each, and
    micro-batches of several samples, since a mean of means needs them.
    """
    batch = requested.effective_batch
    if batch == 1:
        raise InputError(
            "a batch of 1 cannot be split: use at least two units, such as --split 2x2x2", field="--split"
        )
    whole, single = Split(1, 1, batch), Split(1, batch, 1)
    further = []
    for kind in ((False, True), (True, False), (True, True)):
        candidates = [
            split
            for split in _divisions(batch)
            if _kind(split) == kind != _kind(requested) and split not in (whole, single)
        ]
        if candidates:
            further.append(min(candidates, key=_cost))
    return Splits(whole, single, tuple(further))


def choose_rank_splits(requested: Split) -> Splits:
    """Chooses splits over ranks alone, one pass each: of the whole batch on one, and over another number."""
    batch = requested.effective_batch
    others = (
        Split(ranks, 1, batch // ranks)
        for ranks in range(2, MAX_RANKS + 1)
        if ranks != requested.ranks and batch % ranks == 0
    )
    return Splits(Split(1, 1, batch), Split(1, batch, 1), tuple(others)[:1])


def _kind(split: Split) -> tuple[bool, bool]:
    return split.ranks > 1, split.accumulation > 1


def _divisions(batch: int) -> Iterator[Split]:
    """Yields every split of a batch over at most MAX_RANKS ranks."""
    for ranks in range(1, MAX_RANKS + 1):
        for passes in range(1, batch // ranks + 1):
            if batch % (ranks * passes) == 0:
                yield Split(ranks, passes, batch // (ranks * passes))


def _cost(split: Split) -> tuple[bool, int, int, int]:
    """Orders splits: several samples a pass, factors that differ, few ranks, many passes."""
    return split.micro_batch == 1, ambiguity(split), split.ranks, -split.accumulation


def ambiguity(split: Split) -> int:
    """Counts equal factors of a split: a weight would have several causes.

    >>> ambiguity(Split(2, 2, 2)), ambiguity(Split(2, 4, 3)), ambiguity(Split(1, 4, 2))
    (2, 0, 0)
    """
    both = (split.ranks * split.accumulation,) if split.ranks > 1 and split.accumulation > 1 else ()
    factors = [factor for factor in (split.ranks, split.accumulation, split.micro_batch, *both) if factor > 1]
    return len(factors) - len(set(factors))


def shrink(requested: Split) -> Split:
    """Makes a split of at most MAX_SAMPLES and MAX_RANKS in the same shape, for a comparison on a few cores.

    Factors of more than one stay so. Ranks and accumulation are kept where they fit, the micro-batch shrinks
    first; of the splits left the one with the fewest equal factors is taken, then the cheapest.

    >>> [str(shrink(Split.parse(text))) for text in ("2x4x32", "8x1x4", "1x64x2", "2x2x2")]
    ['2x4x2', '2x1x4', '1x8x2', '2x2x2']
    """
    if requested.effective_batch <= MAX_SAMPLES and requested.ranks <= MAX_RANKS:
        return requested
    splits = [
        Split(ranks, accumulation, micro_batch)
        for ranks in range(min(2, requested.ranks), min(requested.ranks, MAX_RANKS) + 1)
        for accumulation in range(
            min(2, requested.accumulation), min(requested.accumulation, MAX_SAMPLES) + 1
        )
        for micro_batch in range(1, min(requested.micro_batch, MAX_SAMPLES) + 1)
        if ranks * accumulation * micro_batch <= MAX_SAMPLES
    ]

    def preference(split: Split) -> tuple[bool, bool, bool, int, int, int]:
        return (
            (split.micro_batch > 1) == (requested.micro_batch > 1),
            split.ranks == requested.ranks,
            split.accumulation == requested.accumulation,
            -ambiguity(split),
            -split.ranks,
            split.effective_batch,
        )

    return max(splits, key=preference)
