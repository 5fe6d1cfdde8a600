"""Notes the samples of a torch loader, without a change to the loop: the loader's and its sampler's class are replaced by
a subclass with notes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from isobatch.diagnosis.tensors import checksum, tensors_in
from isobatch.errors import InputError
from isobatch.integrations.torch.sampler import PlanSampler

ORDER_IDS = 64  # sample ids of a past epoch, to compare orders
MAX_DISTINCT_SAMPLES = 50_000_000  # above it an epoch's samples are counted, not told apart
MAX_COUNTED_IDS = 65_536  # of its ids
PACKED_BATCHES = 64  # micro-batches whose ids are packed at once: less of a loop's time, and of a processor's cache, than one by one


class Epoch:
    """Counts what a sampler served since it was last iterated.

    `count` is how many samples, `sizes` of the micro-batches; `place` is the (epoch, offset) at which a
    PlanSampler began; `odd` an id that is no whole number, where there is one: then `ids` has none. `trained` counts micro-batches that went through the model, `skipped` those before them that the loop
    left out, to resume; `given` those that the loader had given when the next epoch began. `limited` is whether a trainer takes only the
    first `length`.
    """

    def __init__(self, place: tuple[int, int] | None, length: int | None, *, limited: bool = False) -> None:
        self.sizes, self.count = list[int](), 0
        self._ids, self._noted = array("q"), list[tuple[int, ...]]()
        self.place, self._length, self._ended = place, length, False
        self.trained = self.skipped = self.given = 0
        self.limited = limited
        self.odd = ""

    def note(self, ids: list[int], every: bool) -> None:
        """Notes a micro-batch."""
        if every or self.count < MAX_COUNTED_IDS:
            self._noted.append(tuple(ids))
            if len(self._noted) == PACKED_BATCHES:
                self._pack()
        size = len(ids)
        self.sizes.append(size)
        self.count += size

    def _pack(self) -> None:
        try:
            for ids in self._noted:
                self._ids.extend(ids)
        except TypeError:
            self.odd = self.odd or f"{ids[0]!r}"
        self._noted.clear()

    @property
    def ids(self) -> array[int]:
        """The samples, in order."""
        self._pack()
        if self.odd:
            del self._ids[:]
        return self._ids

    def end(self) -> None:
        """Notes the sampler's end."""
        self._ended = True

    @property
    def length(self) -> int | None:
        """Micro-batches in all; None where it cannot be known before the end."""
        return len(self.sizes) if self._ended and not self.limited else self._length

    @property
    def whole(self) -> bool:
        """Whether all of it was served."""
        return len(self.sizes) == self.length and not self.limited

    @property
    def short(self) -> bool:
        """Whether the loop left it before its end, and began another."""
        return 0 < self.given < (self.length or 0) and not self.limited

    def step(self, micro: int) -> tuple[list[int], list[int]]:
        """Returns the sizes and the ids of the last `micro` micro-batches trained on."""
        done = self.skipped + self.trained
        before, sizes = sum(self.sizes[: done - micro]), self.sizes[done - micro : done]
        return sizes, list(self.ids[before : before + sum(sizes)])


class LoaderWatch:
    """Takes notes of a loader.

    `now` is the epoch under way and `last` the one before it, None where there is none; `batches` what the loader gave and
    nobody took yet, as long as `keep` holds, `given` how many it gave in this epoch, `served` in all; `epoch_set` whether set_epoch was called.
    `sampled` is whether ids can be seen at all: an iterable dataset has none. `changed` is whether the script wrote into a
    batch that was taken; `digests` are those of the first batches, where there are workers and no ids.
    """

    def __init__(self, loader: Any, limit: int | None = None) -> None:
        """Begins; `limit`: the micro-batches of an epoch, where a trainer takes fewer than all."""
        self.loader, self.limit = loader, limit
        self.now: Epoch | None = None
        self.last: Epoch | None = None
        self.batches: deque[tuple[Any, int]] = deque()  # with the writes into it so far
        self.keep, self.given, self.served, self.changed = True, 0, 0, False
        self.digests = list[Any]()
        self.batch_sampler: Any = getattr(loader, "batch_sampler", None)
        self.sampler: Any = getattr(self.batch_sampler, "sampler", None) or getattr(loader, "sampler", None)
        # One of the user's own, such as batches of about as many tokens; torch then gives the loader a sampler of no use.
        self.own_batches = self.batch_sampler is not None and not isinstance(
            self.batch_sampler, BatchSampler | PlanSampler
        )
        if self.own_batches:
            self.sampler = getattr(self.batch_sampler, "sampler", self.batch_sampler)
        dataset: Any = getattr(loader, "dataset", None)
        # An IterableDataset inherits a __getitem__, and its loader has a sampler: of None, without an end.
        has_ids = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
        # Accelerate's dispatch_batches: rank 0 reads for all, so that no rank's sampler says what it has.
        self.dispatched = _is_a("DataLoaderDispatcher", loader)
        self.sampled = self.batch_sampler is not None and has_ids and not self.dispatched
        self.workers = int(getattr(loader, "num_workers", 0) or 0)
        self.epoch_set = bool(getattr(self.sampler, "epoch", 0))
        self.size = (length(dataset) or 0) if self.sampled else 0
        self._kinds = [_retype(loader, "__iter__", self._batches)]
        if self.sampled:
            self._kinds.append(_retype(self.batch_sampler, "__iter__", self._ids))
        if callable(getattr(self.sampler, "set_epoch", None)):
            self._kinds.append(_retype(self.sampler, "set_epoch", self._set_epoch))

    @property
    def sharded(self) -> bool:
        """Whether Accelerate's sampler deals the batches out, also for transformers' Trainer."""
        return _is_a("BatchSamplerShard", self.batch_sampler)

    def remove(self) -> None:
        """Gives loader and samplers their own classes back."""
        for thing, kind in reversed(self._kinds):
            _set_class(thing, kind)
        self._kinds.clear()

    def _batches(self, own: Any) -> Iterator[Any]:
        inner = own()

        def noted() -> Iterator[Any]:
            for batch in inner:
                self.given += 1
                self.served += 1
                if self.keep:
                    self.batches.append((batch, _writes(batch)))
                    if self.workers > 1 and not self.sampled:
                        self.digests.append(checksum(tensors_in(batch)))
                yield batch

        return noted()

    def _ids(self, own: Any) -> Iterator[list[int]]:
        sampler = self.batch_sampler
        place = (sampler.epoch, sampler.offset) if isinstance(sampler, PlanSampler) else None
        size = length(sampler) if self.limit is None else self.limit
        inner, every = own(), self.size <= MAX_DISTINCT_SAMPLES

        def noted() -> Iterator[list[int]]:
            epoch = Epoch(place, size, limited=self.limit is not None)
            if self.now is not None:
                self.now.given = self.given
            if self.now is None or self.now.trained:
                self.last = self.now
            else:
                self.batches.clear()  # a pass without training: an evaluation, or update_bn
            self.now, self.given = epoch, 0
            for ids in inner:
                epoch.note(ids, every)
                yield ids
            epoch.end()

        return noted()

    def _set_epoch(self, own: Any, epoch: int) -> None:
        self.epoch_set = True
        own(epoch)

    def skip(self, micro_batches: int) -> None:
        """Leaves out the first ones of this epoch, as the loop did."""
        if self.now is not None:
            self.now.skipped = micro_batches
        for _ in range(min(micro_batches, len(self.batches))):
            self.batches.popleft()

    def take(self, micro_batches: int) -> list[Any]:
        """Takes the next batches of the loader; fewer where the loop has them from elsewhere."""
        taken = [self.batches.popleft() for _ in range(min(micro_batches, len(self.batches)))]
        self.changed = self.changed or any(_writes(batch) != writes for batch, writes in taken)
        return [batch for batch, _ in taken]

    def rest(self) -> None:
        """Drops batches, and keeps no more."""
        self.keep = False
        self.batches.clear()


def _writes(batch: Any) -> int:
    """Counts the writes into a batch's tensors: mixup does so in place."""
    return sum(one._version for one in tensors_in(batch) if not one.is_inference())


def _is_a(name: str, thing: Any) -> bool:
    """Tells whether a thing's class, or a base of it, is so named."""
    return any(base.__name__ == name for base in type(thing).__mro__)


def length(thing: Any) -> int | None:
    """Returns a length; None where there is none."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def _retype(thing: Any, method: str, noted: Any) -> tuple[Any, type]:
    """Turns calls of `thing.method(*args)` into `noted(the method as it was, *args)`. Returns the thing and its class before."""
    kind = type(thing)

    def called(self: Any, *args: Any, **named: Any) -> Any:
        return noted(lambda *given: getattr(kind, method)(self, *given), *args, **named)

    new = type(kind.__name__, (kind,), {"__module__": kind.__module__, method: called})
    try:
        _set_class(thing, new)
    except TypeError:
        text = f"a {kind.__name__} cannot be watched: give a DataLoader, or None"
        raise InputError(text, field="loader") from None
    return thing, kind


def _set_class(thing: Any, kind: type) -> None:
    """Sets the real one: Accelerate's loaders pose as another class."""
    vars(object)["__class__"].__set__(thing, kind)
