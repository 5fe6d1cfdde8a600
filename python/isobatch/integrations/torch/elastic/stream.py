"""A stream as the data of an elastic run: all ranks read the same one, and each keeps its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.dealing import Pass, Span
from isobatch.integrations.torch.elastic.progress import Progress


class RunStream(IterableDataset[list[Any]]):
    """The micro-batches of this replica, as lists of samples, from the run's step to its end.

    The stream is read from the beginning of the epoch, and what was consumed is left out. It is begun anew where it ends, or where the
    epoch does, after `set_epoch(epoch)` where it has that.
    """

    def __init__(self, progress: Progress, samples: Iterable[Any], *, equal: bool, least: int = 1) -> None:
        self._run, self._samples, self.equal, self._least = progress, samples, equal, least

    def __iter__(self) -> Iterator[list[Any]]:
        size = self._run.planned.plan.recipe.dataset_size
        stream: Iterator[Any] = iter(())
        then: tuple[int, int] | None = None
        for span in self._run.spans():
            # Otherwise the stream is there already: only where an epoch drops its end it is not.
            if then != (span.epoch, span.offset):
                stream = _endless(self._samples, size, span.epoch, span.offset)
            yield from _dealt(stream, span, self._run.passes(span, equal=self.equal, least=self._least))
            after = span.offset + span.samples
            then = (span.epoch, after) if size is None else (span.epoch + after // size, after % size)


def _dealt(stream: Iterator[Any], span: Span, passes: list[Pass]) -> Iterator[list[Any]]:
    """A replica's micro-batches of a step; all of the step's samples are read."""
    first = next(stream)
    at = span.offset
    for one in passes:
        if one.stand_in:
            yield [first]
            continue
        taken = []
        for place in range(at, one.places[-1] + 1):
            sample = first if place == span.offset else next(stream)
            if place in one.places:
                taken.append(sample)
        at = one.places[-1] + 1
        yield taken
    for _ in range(max(at, span.offset + 1), span.offset + span.samples):
        next(stream)


def _endless(samples: Iterable[Any], size: int | None, epoch: int, offset: int) -> Iterator[Any]:
    """The samples behind the first `offset` of an epoch, and those of all epochs after it.

    Raises:
        InputError: the stream has none, or fewer than the recipe's dataset_size.
    """
    while True:
        if hasattr(samples, "set_epoch"):
            samples.set_epoch(epoch)
        read = 0
        for sample in islice(iter(samples), size):
            read += 1
            if read > offset:
                yield sample
        if size is not None and read < size:
            raise InputError(
                f"dataset_size must be {read:,}, as the stream has, got {size:,}", field="dataset_size"
            )
        if not read:
            raise InputError(
                "the stream has no sample: an iterator that was read cannot be read again", field="dataset"
            )
        epoch, offset = epoch + 1, max(0, offset - read)
