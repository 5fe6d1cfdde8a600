"""A step of two runs side by side, and the outcomes of a check of it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from isobatch.equivalence.details import InputTensor, StepDetails
from isobatch.equivalence.records import Event, RankStep, RecordedStep, Recording, Vector
from isobatch.equivalence.weights import distance


class Unlike(NamedTuple):
    """Both values, in words, and where they differ."""

    reference: str
    second: str
    text: str

    @classmethod
    def of(cls, sides: Iterable[str], text: str) -> "Unlike":
        """Makes one of both sides' values."""
        reference, second = sides
        return cls(reference, second, text)


class Unseen(NamedTuple):
    """Why neither side shows it."""

    reason: str


class Pair(NamedTuple):
    """A step of both runs, with the rounding of its gradient and update as relative distances."""

    run: Recording
    second_run: Recording
    event: Event
    tolerances: tuple[float, float]

    @property
    def steps(self) -> tuple[RecordedStep, RecordedStep]:
        """The step of the reference, and of the other run."""
        return self.run.steps[self.event], self.second_run.steps[self.event]

    @property
    def records(self) -> tuple[RankStep, RankStep]:
        """The records of rank 0."""
        return self.steps[0].first, self.steps[1].first

    @property
    def details(self) -> tuple[StepDetails, StepDetails] | None:
        """The details of rank 0; None where they were not kept."""
        first, second = (record.details for record in self.records)
        return None if first is None or second is None else (first, second)

    def aligned(self, vectors: Sequence[Vector]) -> tuple[Vector, Vector]:
        """Returns two sketches with the tensors of the first one's order."""
        first, second = self.records
        if short_names(first) == short_names(second):
            return vectors[0], vectors[1]
        starts = np.cumsum([0, *second.sizes])
        places = dict(zip(short_names(second), pairwise(starts), strict=True))
        parts = [vectors[1][slice(*places[name])] for name in short_names(first)]
        return vectors[0], np.concatenate(parts)

    def gradient_distance(self) -> float:
        """Returns the relative distance of both gradients."""
        reference, second = self.aligned([step.gradients.mean(0) for step in self.steps])
        return distance(second, reference)

    def inputs(self) -> Iterator[tuple[str, dict[str, InputTensor], dict[str, InputTensor]]]:
        """Yields the tensors of each pass on both sides, with the pass in words."""
        for rank, (record, second) in enumerate(zip(self.steps[0].ranks, self.steps[1].ranks, strict=False)):
            for number, (taken, other_taken) in enumerate(zip(record.passes, second.passes, strict=False)):
                where = f"pass {number}" + (f" of rank {rank}" if len(self.steps[0].ranks) > 1 else "")
                sides = [{tensor.name: tensor for tensor in part.inputs} for part in (taken, other_taken)]
                yield where, sides[0], sides[1]


def short_names(record: RankStep) -> list[str]:
    """Names the tensors by their place in a layer; whole names where two were alike."""
    shorts = []
    for name in record.names:
        parts = name.split(".")
        first = next((at for at, part in enumerate(parts) if part.isdigit()), max(0, len(parts) - 2))
        shorts.append(".".join(parts[first:]))
    return shorts if len({*shorts}) == len(shorts) else record.names
