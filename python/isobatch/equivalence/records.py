"""The recording of a run, read back: samples, gradients and learning rates of each optimizer step."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from isobatch.equivalence.split import Split

Vector = npt.NDArray[np.float64]


class PassSamples(msgspec.Struct, frozen=True):
    """A forward and backward pass: a hash of each sample, and its tokens after and before the labels' shift."""

    hashes: list[str]
    tokens: list[int]


class LoaderDraws(msgspec.Struct, frozen=True):
    """A loader's draws.

    Attributes:
        name: of its dataset, the same in every rank and split.
        passes: backward passes before which it was the last to draw.
        rows: of the dataset.
        batches: rows by batch, those given in the place of the drawn ones.
        own: rows by batch, as drawn.
    """

    name: str
    passes: int
    rows: int | None
    batches: list[list[int]]
    own: list[list[int]]


class RankStep(msgspec.Struct, frozen=True, dict=True):
    """One rank's record of an optimizer's step; a sketch has `sizes` buckets for each tensor of `names`."""

    optimizer: int
    step: int
    rank: int
    kind: str
    world: int
    groups: list[dict[str, Any]]
    names: list[str]
    sizes: list[int]
    entries: list[int]
    own: list[bool]
    half: bool
    passes: list[PassSamples]
    norms: list[tuple[float, float]]
    drawn: list[LoaderDraws]
    notes: dict[str, int]
    seconds: float
    device: str
    versions: dict[str, str]
    running: dict[str, Any] | None = None

    @property
    def lrs(self) -> list[float]:
        """Returns the learning rate of each parameter group."""
        return [float(group["lr"]) for group in self.groups if isinstance(group.get("lr"), int | float)]

    @cached_property
    def columns(self) -> npt.NDArray[np.bool_]:
        """Marks the buckets of this optimizer's tensors."""
        return np.repeat(np.array(self.own, dtype=bool), self.sizes)


class RecordedStep(msgspec.Struct, frozen=True):
    """A step of an optimizer, as all ranks recorded it.

    Attributes:
        ranks: a record a rank, by rank.
        gradients: (ranks, buckets), the gradient that the optimizer applies.
        weights: (ranks, buckets), the parameters before the step.
        changes: (passes, buckets) of rank 0, what each pass added to the gradient; empty where that was not
            recorded.
    """

    ranks: list[RankStep]
    gradients: Vector
    weights: Vector
    changes: Vector

    @property
    def first(self) -> RankStep:
        """Returns the record of rank 0."""
        return self.ranks[0]


class Recording(msgspec.Struct, frozen=True):
    """A run of a split: its steps by optimizer, in order."""

    split: Split
    seconds: float
    steps: dict[int, list[RecordedStep]]

    def events(self) -> Iterator[tuple[int, int]]:
        """Yields the optimizer and the number of each recorded step."""
        for optimizer, steps in sorted(self.steps.items()):
            yield from ((optimizer, number) for number in range(len(steps)))

    def at(self, event: tuple[int, int]) -> RecordedStep | None:
        """Returns a step, or None where this run has not taken it."""
        optimizer, number = event
        steps = self.steps.get(optimizer, [])
        return steps[number] if number < len(steps) else None

    @property
    def last(self) -> RecordedStep:
        """Returns the last recorded step."""
        return max((steps[-1] for steps in self.steps.values()), key=lambda step: step.first.seconds)

    @property
    def notes(self) -> dict[str, int]:
        """Counts the recorder's notes over all ranks."""
        counts: dict[str, int] = {}
        for record in self.last.ranks:
            for note, count in record.notes.items():
                counts[note] = counts.get(note, 0) + count
        return counts

    def training_loader(self, rank: int = 0) -> LoaderDraws | None:
        """Returns the loader of a rank's training: the one with the most passes, then with the most rows."""

        def preference(loader: LoaderDraws) -> tuple[int, int]:
            return loader.passes, sum(map(len, loader.batches))

        return max(self.last.ranks[rank].drawn, key=preference, default=None)

    def rows(self, event: tuple[int, int], *, own: bool = False) -> list[list[list[int]]] | None:
        """Returns the rows of the dataset of a step, by rank and pass; None where the draws do not tell.

        Args:
            event: the optimizer and the number of the step.
            own: the rows that the script would have drawn, not those given in their place.
        """
        step = self.at(event)
        if step is None:
            return None
        by_rank = []
        for rank, record in enumerate(step.ranks):
            before = sum(len(earlier.ranks[rank].passes) for earlier in self.steps[event[0]][: event[1]])
            loader = self.training_loader(rank)
            if loader is None:
                return None
            batches = (loader.own if own else loader.batches)[before : before + len(record.passes)]
            if len(batches) < len(record.passes) or any(len(b) > self.split.micro_batch for b in batches):
                return None
            by_rank.append(batches)
        return by_rank

    def drawn_steps(self) -> list[list[int]] | None:
        """Returns the rows of each step over all ranks; None where no loader drew any.

        A script that passes a batch through the model more than once draws the batches of a step all the
        same.
        """
        optimizer = min(self.steps)
        steps = [self.rows((optimizer, number)) for number in range(len(self.steps[optimizer]))]
        if any(step is None for step in steps):
            loaders = [self.training_loader(rank) for rank in range(len(self.last.ranks))]
            batches = [[] if loader is None else loader.own for loader in loaders]
            size = self.split.accumulation
            whole = range(0, min(map(len, batches)) - size + 1, size)
            steps = [[rank[first : first + size] for rank in batches] for first in whole]
        rows = [
            [row for rank in step for batch in rank for row in batch] for step in steps if step is not None
        ]
        return rows or None

    def samples(self, event: tuple[int, int]) -> int:
        """Counts the samples of a step over all ranks: dataset rows if known, else rows of the model's input."""
        if (rows := self.rows(event)) is not None:
            return sum(len(batch) for rank in rows for batch in rank)
        step = self.at(event)
        return (
            0
            if step is None
            else sum(len(samples.hashes) for record in step.ranks for samples in record.passes)
        )


def read_recording(folder: Path, split: Split, seconds: float) -> Recording | None:
    """Reads the ranks' records of a run; None if no rank finished a step.

    A step is left out unless every rank finished it.
    """
    records: dict[tuple[int, int], dict[int, RankStep]] = {}
    decoder = msgspec.json.Decoder(RankStep)
    for path in folder.glob("step-*.json"):
        record = decoder.decode(path.read_bytes())
        records.setdefault((record.optimizer, record.step), {})[record.rank] = record
    steps: dict[int, list[RecordedStep]] = {}
    for (optimizer, number), ranks in sorted(records.items()):
        whole = len(ranks) == max(split.ranks, *(record.world for record in ranks.values()))
        if whole and number == len(steps.setdefault(optimizer, [])):
            steps[optimizer].append(_read_step(folder, [ranks[rank] for rank in sorted(ranks)]))
    steps = {optimizer: recorded for optimizer, recorded in steps.items() if recorded}
    return Recording(split, seconds, steps) if steps else None


def _read_step(folder: Path, ranks: list[RankStep]) -> RecordedStep:
    arrays = []
    for record in ranks:
        name = f"step-{record.optimizer}-{record.step}-{record.rank}.f64"
        arrays.append(np.fromfile(folder / name).reshape(-1, sum(record.sizes)))
    gradients, weights = (np.stack([rows[number] for rows in arrays]) for number in (0, 1))
    return RecordedStep(ranks, gradients, weights, arrays[0][2:])
