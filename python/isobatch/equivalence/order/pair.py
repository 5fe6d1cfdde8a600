"""A step of two runs side by side, and the outcomes of a check of it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec
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
        """Returns the trained tensors of two sketches, in the first one's order."""
        names = trained(self.records[0])
        sides = []
        for record, vector in zip(self.records, vectors, strict=True):
            parts, places = np.split(vector, np.cumsum(record.sizes)[:-1]), trained(record)
            sides.append(np.concatenate([np.zeros(0), *(parts[places[name]] for name in names)]))
        return sides[0], sides[1]

    def gradient_distance(self) -> float:
        """Returns the relative distance of both gradients."""
        reference, second = self.aligned([step.gradients.mean(0) for step in self.steps])
        return distance(second, reference)

    def inputs(self) -> Iterator[tuple[str, dict[str, InputTensor], dict[str, InputTensor]]]:
        """Yields the tensors of each pass on both sides, with the pass in words.

        A tensor under another name, or in another place of the call, has the name of the reference's.
        """
        for rank, (record, second) in enumerate(zip(self.steps[0].ranks, self.steps[1].ranks, strict=False)):
            for number, (taken, other_taken) in enumerate(zip(record.passes, second.passes, strict=False)):
                where = f"pass {number}" + (f" of rank {rank}" if len(self.steps[0].ranks) > 1 else "")
                own, theirs = (
                    {tensor.name: tensor for tensor in part.inputs} for part in (taken, other_taken)
                )
                for name in [name for name in own if name not in theirs]:
                    alike = [at for at in theirs if at not in own and _may_be(theirs[at], own[name])]
                    if len(alike) == 1 or (alike and own[name].entries):
                        theirs[name] = theirs.pop(alike[0])
                yield where, own, theirs


def _may_be(tensor: InputTensor, second: InputTensor) -> bool:
    """Tells whether two tensors of other names are one: features by their shape, indices by their content."""
    if tensor.sums and second.sums:
        return (tensor.shape, tensor.dtype) == (second.shape, second.dtype)
    return msgspec.structs.replace(tensor, name=second.name) == second


def trained(record: RankStep) -> dict[str, int]:
    """Returns the places of the trained tensors by their names: an optimizer may have others."""
    flags = [True] * len(record.names) if record.details is None else record.details.trained
    return {name: at for at, (name, flag) in enumerate(zip(short_names(record), flags, strict=True)) if flag}


def short_names(record: RankStep) -> list[str]:
    """Names the tensors by their place in a layer, else without the names of all modules around."""
    shorts = []
    for name in record.names:
        parts = name.split(".")
        first = next((at for at, part in enumerate(parts) if part.isdigit()), max(0, len(parts) - 2))
        shorts.append(".".join(parts[first:]))
    if len({*shorts}) == len(shorts):
        return shorts
    names = [name.split(".") for name in record.names]
    outer = [*takewhile(lambda parts: len({*parts}) == 1, zip(*(name[:-1] for name in names), strict=False))]
    return [".".join(name[len(outer) :]) for name in names]
