"""Notes the samples of a torch loader, without a change to the loop or to the loader.

Python looks `__iter__` up in a class, so that an object cannot have its own. As torch does for the hooks of
`optimizer.step`, the method of the class is wrapped while an object is watched: its calls on that object are
noted, all others go straight on. The loader and its samplers remain the objects that they were, of the same
class.
"""

from __future__ import annotations

import functools
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import BatchSampler, IterableDataset

from isobatch.diagnosis.tensors import checksum, tensors_in
from isobatch.errors import InputError
from isobatch.integrations.torch.sampler import PlanSampler

ORDER_IDS = 64  # sample ids of a past epoch, to compare orders
MAX_DISTINCT_SAMPLES = 50_000_000  # a larger dataset's samples are only counted, not distinguished
MAX_COUNTED_IDS = 65_536  # the ids kept of such an epoch
PACKED_BATCHES = 64  # micro-batches whose ids are packed at once, in less time than one by one
MIN_TELLING_VALUES = 8  # a tensor with more different values tells two batches apart


class Epoch:
    """Counts the samples of one pass over a sampler; a PlanSampler began at the (epoch, offset) `place`.

    `limited`: a trainer takes only the first `length` micro-batches. `order`: the epoch by whose number the
    sampler shuffles.
    """

    def __init__(
        self,
        place: tuple[int, int] | None,
        length: int | None,
        *,
        limited: bool = False,
        order: int | None = None,
    ) -> None:
        self.place, self.order, self.limited = place, order, limited
        self.sizes, self.count = list[int](), 0  # samples of each micro-batch, and of all
        self._ids, self._noted = array("q"), list[tuple[int, ...]]()
        self._length, self._ended = length, False
        #: Micro-batches that went through the model.
        self.trained = 0
        #: Those before them that the loop left out, to resume.
        self.skipped = 0
        #: Those that the run had trained on before it was resumed.
        self.behind = 0
        #: Those that the loader had given when the next epoch began.
        self.given = 0
        #: An id that is no whole number, where there is one: then `ids` has none.
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
        passed = self.skipped + self.trained
        before, sizes = sum(self.sizes[: passed - micro]), self.sizes[passed - micro : passed]
        return sizes, list(self.ids[before : before + sum(sizes)])


class LoaderWatch:
    """Takes notes of a loader; `limit`: a trainer takes fewer micro-batches of an epoch."""

    def __init__(self, loader: Any, limit: int | None = None) -> None:
        self.loader, self.limit = loader, limit
        self.now: Epoch | None = None
        self.last: Epoch | None = None  # the epoch before it
        #: Batches given and not yet taken, with the writes into them so far, as long as `keep` holds.
        self.batches: deque[tuple[Any, int]] = deque()
        self.keep = True
        self.given = self.served = 0  # batches of this epoch, and of all
        self.changed = False  # the script wrote into a batch that was taken
        self.digests = list[Any]()  # of the first batches, where there are workers and no ids
        self.on_batch: Callable[[], None] | None = None  # called before the loader gives a batch
        self.batch_sampler: Any = getattr(loader, "batch_sampler", None)
        inside: Any = self.batch_sampler
        while self.sharded and hasattr(inside, "batch_sampler"):
            inside = inside.batch_sampler
        self.sampler: Any = getattr(inside, "sampler", None) or getattr(loader, "sampler", None)
        # A batch sampler of the user's own, such as one by tokens; the loader's sampler is then of no use.
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
        self._stops = [listen(loader, "__iter__", self._batches)]
        if self.sampled:
            self._stops.append(listen(self.batch_sampler, "__iter__", self._ids))
        if callable(getattr(self.sampler, "set_epoch", None)):
            self._stops.append(listen(self.sampler, "set_epoch", self._set_epoch))

    @property
    def sharded(self) -> bool:
        """Whether Accelerate's sampler deals the batches out, also for transformers' Trainer."""
        return _is_a("BatchSamplerShard", self.batch_sampler)

    def remove(self) -> None:
        """Stops watching the loader."""
        for stop in self._stops:
            stop()
        self._stops.clear()

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
                if self.on_batch is not None:
                    self.on_batch()
                yield batch

        return noted()

    def _ids(self, own: Any) -> Iterator[list[int]]:
        sampler = self.batch_sampler
        place = (sampler.epoch, sampler.offset) if isinstance(sampler, PlanSampler) else None
        size = length(sampler) if self.limit is None else self.limit
        inner, every = own(), self.size <= MAX_DISTINCT_SAMPLES

        def noted() -> Iterator[list[int]]:
            order = getattr(self.sampler, "epoch", None)
            order = order if isinstance(order, int) else None
            epoch = Epoch(place, size, limited=self.limit is not None, order=order)
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
        """Leaves out the first micro-batches of this epoch, as the loop did."""
        if self.now is not None:
            self.now.skipped = micro_batches
        for _ in range(min(micro_batches, len(self.batches))):
            self.batches.popleft()

    def take(self, micro_batches: int) -> list[Any]:
        """Takes the next batches of the loader; fewer where the loop has them from elsewhere."""
        pairs = [self.batches.popleft() for _ in range(min(micro_batches, len(self.batches)))]
        self.changed = self.changed or any(_writes(batch) != writes for batch, writes in pairs)
        return [batch for batch, _ in pairs]

    def contents(self, micro_batches: int) -> str | None:
        """Returns a checksum of the next batches; None if their values are too few to tell them apart."""
        batches = [batch for batch, _ in list(self.batches)[:micro_batches]]
        telling = [tensor for tensor in tensors_in(batches) if _is_telling(tensor)]
        return str(checksum(telling)) if telling else None

    def rest(self) -> None:
        """Drops the batches, and keeps no more."""
        self.keep, self.on_batch = False, None
        self.batches.clear()


def _writes(batch: Any) -> int:
    """Counts the writes into a batch's tensors: mixup does so in place."""
    return sum(tensor._version for tensor in tensors_in(batch) if not tensor.is_inference())


def _is_telling(tensor: Tensor) -> bool:
    """Tells whether equal tensors on two ranks mean equal samples: labels of a few values do not."""
    return tensor.numel() > MIN_TELLING_VALUES < len(set(tensor.flatten()[:1024].tolist()))


def _is_a(name: str, value: Any) -> bool:
    """Tells whether a value's class, or a base of it, is so named."""
    return any(base.__name__ == name for base in type(value).__mro__)


def length(value: Any) -> int | None:
    """Returns a length; None where there is none."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


Listener = Callable[..., Any]


class _Wrapped(NamedTuple):
    """A wrapped method of a class, the class's own one where it has it, and the listeners by object."""

    method: Listener
    own: Listener | None
    listeners: dict[int, list[Listener]]


_WRAPPED: dict[tuple[type, str], _Wrapped] = {}


def listen(value: Any, name: str, listener: Listener) -> Callable[[], None]:
    """Turns calls of `value.name(*args)` into `listener(the method as it was, *args)`; returns how to stop.

    The method of the class is wrapped for as long as one of its objects is watched.
    """
    kind = type(value)  # the real one: Accelerate's loaders pose as another class
    try:
        wrapped = _WRAPPED.get((kind, name)) or _wrap(kind, name)
    except (TypeError, AttributeError):
        text = f"a {kind.__name__} cannot be watched: give a DataLoader, or None"
        raise InputError(text, field="loader") from None
    listeners = wrapped.listeners
    listeners.setdefault(id(value), []).append(listener)

    def stop() -> None:
        listeners[id(value)].remove(listener)
        if not listeners[id(value)]:
            del listeners[id(value)]
        # If somebody else has wrapped it since, it stays, and passes all calls on.
        if listeners or vars(kind).get(name) is not wrapped.method:
            return
        if wrapped.own is None:
            delattr(kind, name)
        else:
            setattr(kind, name, wrapped.own)
        del _WRAPPED[kind, name]

    return stop


def _wrap(kind: type, name: str) -> _Wrapped:
    inherited, own, listeners = getattr(kind, name), vars(kind).get(name), dict[int, list[Listener]]()

    @functools.wraps(inherited)
    def method(owner: Any, *args: Any, **named: Any) -> Any:
        call = functools.partial(inherited, owner)
        for listener in listeners.get(id(owner), ()):
            call = functools.partial(listener, call)
        return call(*args, **named)

    setattr(kind, name, method)
    return _WRAPPED.setdefault((kind, name), _Wrapped(method, own, listeners))
