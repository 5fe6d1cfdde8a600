"""The data of an elastic run: this replica's micro-batches from the run's step to its end, from a map-style
dataset or a stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, Sampler, default_collate

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.training.chunks import SeededDataset, chunk_passes, chunk_places
from isobatch.training.dealing import Pass, Span, passes, spans
from isobatch.training.lr import ElasticLR
from isobatch.training.workers import RankLoader, begin_worker

PassesOf: TypeAlias = Callable[[Span], list[Pass]]
"""Lists the passes of a replica in a step."""


@dataclass(eq=False, kw_only=True)
class ReplicaShare(ABC):
    """A replica's share of the steps from a place in the data on, by the plan of a step."""

    plan: Plan
    replica: int
    seed: int
    shuffle: bool
    _alike: dict[tuple[int, bool, bool], list[Pass]] = field(default_factory=dict, init=False)

    @property
    def rounds(self) -> int:
        """The passes of a full step on the first replica: no other has more."""
        step = Span(0, 0, 0, self.plan.effective_batch or 0, full=True, last_of_epoch=False)
        return len(passes(self.plan, step, 0))

    @property
    def replicas(self) -> int:
        """The replicas of the plan."""
        return self.plan.data_parallel or 1

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Yields the samples of each remaining step."""

    @abstractmethod
    def spans_from(self, span: Span) -> Iterator[Span]:
        """Yields a step and those after it."""

    def work(self, passes_of: PassesOf, begins: tuple[Span, int] | None) -> Iterator[tuple[Span, list[Pass]]]:
        """Yields the remaining steps with their passes: from the run's place, or from a pass of a step on."""
        if begins is None:
            yield from ((span, passes_of(span)) for span in self.spans())
            return
        first, passed = begins
        for span in self.spans_from(first):
            yield span, passes_of(span)[passed if span.number == first.number else 0 :]

    @property
    @abstractmethod
    def place(self) -> tuple[int, int]:
        """(epoch, offset): the place after the last finished step."""

    def read(self, span: Span, portion: Pass, places: list[int]) -> list[int]:  # noqa: ARG002
        """Returns the samples of a pass as the dataset reads them."""
        return places

    @abstractmethod
    def advance(self, span: Span) -> None:
        """Notes the end of this replica's micro-batches of a step."""

    def passes(self, span: Span, *, equal: bool, least: int = 1) -> list[Pass]:
        """Returns the passes of this replica in a step."""
        return passes(self.plan, span, self.replica, equal=equal, least=least)

    def passes_like(self, span: Span, *, equal: bool) -> list[Pass]:
        """Returns the passes of a step, with places counted from offset 0: once for all of the same size."""
        key = span.samples, span.full, equal
        portions = self._alike.get(key)
        if portions is None:
            portions = self._alike[key] = self.passes(span._replace(offset=0), equal=equal)
        return portions


@dataclass(eq=False, kw_only=True)
class RunShare(ReplicaShare):
    """A run's progress and its remaining steps on this replica; its data, loop and schedulers share this.

    Attributes:
        course: the whole run as a plan for a single replica.
        processes: the processes of the run; with model parallelism more than replicas.
        step: the number of finished steps.
        schedulers: the schedulers that must be stepped before a step counts as finished.
        chunk: the samples of a chunk; None: steps are not in chunks.
    """

    course: Plan
    processes: int
    step: int
    chunk: int | None = None
    schedulers: list[ElasticLR] = field(default_factory=list, init=False)

    def spans(self) -> Iterator[Span]:
        """Yields the samples of each remaining step."""
        return spans(self.course, self.step)

    def spans_from(self, span: Span) -> Iterator[Span]:
        """Yields a step and those after it."""
        return spans(self.course, span.number)

    def passes(self, span: Span, *, equal: bool, least: int = 1) -> list[Pass]:
        """Returns the passes of this replica in a step: its chunks, if steps are in chunks."""
        if self.chunk is None:
            return super().passes(span, equal=equal, least=least)
        return chunk_passes(span, self.chunk, self.replica, self.replicas)

    def read(self, span: Span, portion: Pass, places: list[int]) -> list[int]:
        """Returns the samples of a pass as the dataset reads them."""
        return places if self.chunk is None else chunk_places(places, self.chunk, self.seed, span, portion)

    @property
    def place(self) -> tuple[int, int]:
        """The place behind the last finished step."""
        position = self.course.position(self.step)
        if position.epoch is None or position.offset is None:
            return 0, position.samples
        return position.epoch, position.offset

    def advance(self, span: Span) -> None:
        """Does nothing: the loop counts finished steps."""

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the schedulers: they are tied to their optimizers, and DataLoader workers need none."""
        return {**self.__dict__, "schedulers": []}


class RunBatches(Sampler[list[int]]):
    """A DataLoader's `batch_sampler` for the rest of a run; iterations start at the run's present step."""

    def __init__(self, progress: ReplicaShare, passes_of: PassesOf, size: int) -> None:
        self._run, self._passes_of, self._size = progress, passes_of, size
        self._shuffled: dict[int, NDArray[np.int64]] = {}
        self.begins: tuple[Span, int] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        for span, portions in self._run.work(self._passes_of, self.begins):
            for portion in portions:
                if portion.places[-1] < self._size:
                    places = np.arange(portion.places.start, portion.places.stop, portion.places.step)
                    samples = (self._order(span, 0)[places] if self._run.shuffle else places).tolist()
                else:  # With a batch ramp a step may continue in the next epoch.
                    samples = [self._sample(span, *divmod(place, self._size)) for place in portion.places]
                yield self._run.read(span, portion, samples)

    def _sample(self, span: Span, epochs: int, place: int) -> int:
        return int(self._order(span, epochs)[place]) if self._run.shuffle else place

    def _order(self, span: Span, epochs: int) -> NDArray[np.int64]:
        """Returns the order of the epoch `epochs` after a step's, the same on all replicas."""
        epoch = span.epoch + epochs
        if epoch not in self._shuffled:
            generator = torch.Generator().manual_seed(self._run.seed + epoch)
            later = {at: order for at, order in self._shuffled.items() if at >= span.epoch}
            self._shuffled = {**later, epoch: torch.randperm(self._size, generator=generator).numpy()}
        return self._shuffled[epoch]


def is_stream(dataset: Any) -> bool:
    """Returns whether a dataset can only be iterated."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def data_loader(
    progress: ReplicaShare, passes_of: PassesOf, dataset: Any, options: dict[str, Any]
) -> RankLoader:
    """Makes a DataLoader of this replica's micro-batches, from a map-style dataset or a stream."""
    options = {**options, "worker_init_fn": partial(begin_worker, options.get("worker_init_fn"))}
    stream = is_stream(dataset)
    decided = ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"]
    for name in [*decided, "persistent_workers"] if stream else decided:
        if name in options:
            raise InputError(f"{name} is the plan's to decide: leave it out", field=name)
    if stream:
        if options.get("num_workers", 0) > 1:
            raise InputError(
                "num_workers must be 0 or 1 for a stream, which is read in one order, got "
                f"{options['num_workers']}",
                field="num_workers",
            )
        options = {"collate_fn": default_collate, **options}
        order: Any = RunStream(progress, passes_of, dataset)
        return _ordered(RankLoader(order, batch_size=None, **options), order)
    size, expected = len(dataset), progress.plan.recipe.dataset_size
    if expected != size:
        raise InputError(
            f"dataset_size must be {size:,}, as the dataset has, got {expected!r}", field="dataset_size"
        )
    if isinstance(progress, RunShare) and progress.chunk is not None:
        dataset = SeededDataset(dataset)
    order = RunBatches(progress, passes_of, size)
    return _ordered(RankLoader(dataset, batch_sampler=order, **options), order)


def _ordered(loader: RankLoader, order: Any) -> RankLoader:
    loader.order = order
    return loader


class RunStream(IterableDataset[list[Any]]):
    """The micro-batches of this replica, as lists of samples, from the run's step to its end. The stream is
    read from the beginning of each epoch, after `set_epoch(epoch)` if it has this method."""

    def __init__(self, progress: ReplicaShare, passes_of: PassesOf, samples: Iterable[Any]) -> None:
        self._run, self._passes_of, self._samples = progress, passes_of, samples
        self.begins: tuple[Span, int] | None = None

    def __iter__(self) -> Iterator[list[Any]]:
        size = self._run.plan.recipe.dataset_size
        stream: Iterator[Any] = iter(())
        then: tuple[int, int] | None = None
        for span, portions in self._run.work(self._passes_of, self.begins):
            # Mostly the open stream is at this span already, except after an epoch whose end was dropped.
            if then != (span.epoch, span.offset):
                stream = _endless(self._samples, size, span.epoch, span.offset)
            yield from _pick(stream, span, portions)
            after = span.offset + span.samples
            then = (span.epoch, after) if size is None else (span.epoch + after // size, after % size)


def _pick(stream: Iterator[Any], span: Span, passes: list[Pass]) -> Iterator[list[Any]]:
    """Yields a replica's micro-batches of a step, and reads all of the step's samples."""
    first = next(stream)
    at = span.offset
    for portion in passes:
        if portion.stand_in:
            yield [first]
            continue
        picked = []
        for place in range(at, portion.places[-1] + 1):
            sample = first if place == span.offset else next(stream)
            if place in portion.places:
                picked.append(sample)
        at = portion.places[-1] + 1
        yield picked
    for _ in range(max(at, span.offset + 1), span.offset + span.samples):
        next(stream)


def _endless(samples: Iterable[Any], size: int | None, epoch: int, offset: int) -> Iterator[Any]:
    """Yields the samples after the first `offset` of an epoch, then those of all later epochs."""
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
