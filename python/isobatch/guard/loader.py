"""Notes the samples of a torch loader, without a change to the loop or to the loader.

Python looks `__iter__` up in a class, so that an object cannot have its own. As torch does for the hooks of
`optimizer.step`, the method of the class is wrapped while an object is watched: its calls on that object are
noted, all others go straight on. The loader and its samplers remain the objects that they were, of the same
class.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, IterableDataset

from isobatch.equivalence.tensors import checksum, part, tensors_in
from isobatch.errors import InputError
from isobatch.guard.passes import Batches, Epoch, SizedBatches
from isobatch.guard.randomness import RandomState
from isobatch.training.sampler import PlanSampler

MAX_DISTINCT_SAMPLES = 50_000_000  # a larger dataset's samples are only counted, not distinguished
FIRST_ROWS = 16  # samples to tell whether two ranks have the same dataset
MAX_KEPT_BATCHES = 64  # of a pass, in the first steps: more are only of a pass without training
MIN_TELLING_VALUES = 8  # more different values tell two batches apart


class LoaderWatch:
    """Takes notes of a loader until `hooks` close; `limit`: a trainer takes fewer micro-batches of an epoch.

    A loop may pass over its loader to look or to measure, also amid an epoch, and on one rank alone. Only a
    pass with gradients in a step is an epoch of the training.
    """

    def __init__(self, loader: Any, hooks: ExitStack, limit: int | None = None) -> None:
        self.loader, self.limit = loader, limit
        self.now: Epoch | None = None  # the epoch of the last step, of a loader with ids
        self.last: Epoch | None = None  # the epoch before it
        #: The pass that a call of the model belongs to: the last to give a batch of those under way.
        self.current: Epoch | None = None
        self.opened: Epoch | None = None  # while the loader makes a batch of this pass
        self._open = list[Epoch]()
        self.keep = True  # batches, for the reference
        self.served = 0  # batches of all passes
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
        self.size = self.total = (length(dataset) or 0) if self.sampled else 0
        #: Of this rank's samples among the `total` of all, where each rank has a dataset of its own.
        self.offset = 0
        hooks.callback(listen(loader, "__iter__", self._batches))
        if self.sampled:
            hooks.callback(listen(self.batch_sampler, "__iter__", self._ids))
        if callable(getattr(self.sampler, "set_epoch", None)):
            hooks.callback(listen(self.sampler, "set_epoch", self._set_epoch))

    @property
    def sharded(self) -> bool:
        """Whether Accelerate's sampler deals the batches out, also for transformers' Trainer."""
        return _is_a("BatchSamplerShard", self.batch_sampler)

    def _batches(self, own: Any) -> Batches:
        self.opened = epoch = Epoch()
        try:
            inner = own()
        finally:
            self.opened = None
        kind = SizedBatches if hasattr(inner, "__len__") else Batches
        return kind(self, inner, epoch)

    def give(self, epoch: Epoch, batch: Any) -> None:
        """Notes a batch of a pass."""
        epoch.give(batch)
        self.served += 1
        if self.keep and len(epoch.batches) < MAX_KEPT_BATCHES:
            epoch.batches.append((batch, _writes(batch)))
            if self.workers > 1 and not self.sampled:
                self.digests.append(checksum(tensors_in(batch)))
        if self.on_batch is not None:
            self.on_batch()
        if epoch is not self.current:
            self._enter(epoch)

    def _enter(self, epoch: Epoch) -> None:
        """Lets the calls of the model belong to a pass."""
        if epoch.open:
            self._open = [begun for begun in self._open if begun is not epoch] + [epoch]
        self.current = epoch

    def close(self, epoch: Epoch) -> None:
        """Ends a pass. Calls of the model belong to one still under way, else to the last one."""
        epoch.open = False
        self._open = [begun for begun in self._open if begun is not epoch]
        if epoch is not self.current:
            return
        if self._open:
            self.current = self._open[-1]
        elif epoch.left and not epoch.trained and epoch.called == 0 and self.now is not None:
            self.current = self.now  # a look at a batch

    def follow(self, epochs: Sequence[Epoch]) -> None:
        """Notes a step on micro-batches of these passes."""
        for epoch in epochs:
            epoch.trained += 1
            if epoch is not self.now and epoch.sampled:
                self.last, self.now = self.now, epoch

    def _ids(self, own: Any) -> Iterator[list[int]]:
        sampler, opened = self.batch_sampler, self.opened
        place = (sampler.epoch, sampler.offset) if isinstance(sampler, PlanSampler) else None
        size = length(sampler) if self.limit is None else self.limit
        inner, every = own(), self.size <= MAX_DISTINCT_SAMPLES
        # Another loader around the same sampler has passes of its own.
        epoch = Epoch() if opened is None or opened.sampled else opened

        def noted() -> Iterator[list[int]]:
            order = getattr(self.sampler, "epoch", None)
            epoch.begin(place, size, order if isinstance(order, int) else None, self.limit is not None)
            if epoch is not opened:
                self._enter(epoch)
            for ids in inner:
                epoch.note(ids, every)
                yield ids
            epoch.end()
            if epoch is not opened:
                self.close(epoch)

        return noted()

    def _set_epoch(self, own: Any, epoch: int) -> None:
        self.epoch_set = True
        own(epoch)

    def skip(self, micro_batches: int) -> None:
        """Leaves out the first micro-batches of this epoch, as the loop did."""
        if self.now is not None:
            self.now.skipped = micro_batches
            for _ in range(min(micro_batches, len(self.now.batches))):
                self.now.batches.popleft()

    def take(self, epochs: Sequence[Epoch]) -> list[Any]:
        """Takes the next batch of each of these passes; fewer where the loop has them from elsewhere."""
        pairs = [epoch.batches.popleft() for epoch in epochs if epoch.batches]
        self.changed = self.changed or any(_writes(batch) != writes for batch, writes in pairs)
        return [batch for batch, _ in pairs]

    def contents(self, epochs: Sequence[Epoch]) -> str | None:
        """Returns a checksum of these passes' next batches; None if they are too few values to tell apart."""
        ahead = {id(epoch): iter(epoch.batches) for epoch in epochs}
        batches = [pair[0] for epoch in epochs if (pair := next(ahead[id(epoch)], None)) is not None]
        tensors = tensors_in(batches)
        return str(checksum(tensors)) if _are_telling(tensors) else None

    def first_rows(self) -> str:
        """Returns a checksum of the dataset's first samples, made with the same random numbers on each rank.

        Empty, if they cannot be read here, or are too few values to tell samples apart.
        """
        state = RandomState.now()
        try:
            torch.manual_seed(0), random.seed(0), np.random.seed(0)
            rows = [self.loader.dataset[index] for index in range(min(self.size, FIRST_ROWS))]
            tensors = tensors_in(self.loader.collate_fn(rows))
            return str(checksum(tensors)) if _are_telling(tensors) else ""
        except Exception:  # a dataset may be one of the workers alone
            return ""
        finally:
            state.restore()

    def rest(self) -> None:
        """Drops the batches, and keeps no more."""
        self.keep, self.on_batch = False, None
        for epoch in (self.now, self.last, self.current, *self._open):
            if epoch is not None:
                epoch.batches.clear()


def cut(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cuts a loader's batch into a step's micro-batches; none where it has another size."""
    first = next(iter(tensors_in(batch)), None)
    if first is None or not first.dim() or len(first) != sum(sizes):
        return []
    ends = list(itertools.accumulate(sizes))
    return [part(batch, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _writes(batch: Any) -> int:
    """Counts the writes into a batch's tensors: mixup does so in place."""
    return sum(tensor._version for tensor in tensors_in(batch) if not tensor.is_inference())


def _are_telling(tensors: list[Tensor]) -> bool:
    """Tells whether equal tensors on two ranks mean equal samples: labels of a few values do not."""
    values = set[Any]()
    for tensor in tensors:
        values.update(tensor.flatten()[:1024].tolist())
    return len(values) > MIN_TELLING_VALUES


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
