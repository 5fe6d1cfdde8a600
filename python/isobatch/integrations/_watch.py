"""Sees which samples a torch loader serves, without a change to the loop: the loader's and its sampler's class are replaced by
a subclass that also takes notes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any


def _retype(thing: Any, kind: Any, methods: dict[str, Any]) -> None:
    # Accelerate's loaders pose as another class: this sets the real one.
    vars(object)["__class__"].__set__(
        thing, type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})
    )


class Watch:
    """Notes of a loader.

    `epochs` are the sample ids of each epoch so far, in order; `sizes` of each epoch the micro-batches' sizes; `batches` what
    the loader gave and nobody took yet, as long as `keep` holds; `epoch_set` whether set_epoch was called. `sampled` is
    whether ids can be seen at all: an iterable dataset has none.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.epochs: list[array[int]] = []
        self.sizes: list[list[int]] = []
        self.ended = 0
        self.batches: deque[Any] = deque()
        self.keep = True
        self.batch_sampler = getattr(loader, "batch_sampler", None)
        self.sampler = getattr(self.batch_sampler, "sampler", None) or getattr(loader, "sampler", None)
        dataset = getattr(loader, "dataset", None)
        self.sampled = self.batch_sampler is not None and hasattr(dataset, "__getitem__")
        self.epoch_set = bool(getattr(self.sampler, "epoch", 0))
        watch = self
        loader_kind: Any
        batch_kind: Any
        sampler_kind: Any
        loader_kind, batch_kind, sampler_kind = type(loader), type(self.batch_sampler), type(self.sampler)

        def loader_iter(self: Any) -> Iterator[Any]:
            for batch in loader_kind.__iter__(self):
                if watch.keep:
                    watch.batches.append(batch)
                yield batch

        _retype(loader, loader_kind, {"__iter__": loader_iter})
        if self.sampled:

            def sampler_iter(self: Any) -> Iterator[list[int]]:
                epoch, sizes = array("q"), list[int]()
                watch.epochs.append(epoch)
                watch.sizes.append(sizes)
                for ids in batch_kind.__iter__(self):
                    epoch.extend(ids)
                    sizes.append(len(ids))
                    yield ids
                watch.ended += 1

            _retype(self.batch_sampler, batch_kind, {"__iter__": sampler_iter})
        if hasattr(self.sampler, "set_epoch"):

            def set_epoch(self: Any, epoch: int) -> None:
                watch.epoch_set = True
                sampler_kind.set_epoch(self, epoch)

            _retype(self.sampler, sampler_kind, {"set_epoch": set_epoch})
