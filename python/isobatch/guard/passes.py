"""One pass over a loader: its samples, its batches, and how many of them were trained on."""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any

from isobatch.equivalence.tensors import tensors_in

ORDER_IDS = 64  # sample ids of a past epoch, to compare orders
MAX_COUNTED_IDS = 65_536  # the ids kept of an epoch whose samples are not distinguished
PACKED_BATCHES = 64  # micro-batches whose ids are packed at once, in less time than one by one
FIRST_BATCHES = 4  # of a pass, to see whether the loop has stored them


class Epoch:
    """Counts the samples and batches of one pass over a loader, of training or not.

    `place`: the (epoch, offset) at which a PlanSampler began. `limited`: a trainer takes only the first
    `length` micro-batches. `order`: the epoch by whose number the sampler shuffles.
    """

    def __init__(self) -> None:
        self.place: tuple[int, int] | None = None
        self.order: int | None = None
        self.limited = self.sampled = False  # `sampled`: the sampler gives it ids
        self.sizes, self.count = list[int](), 0  # samples of each micro-batch, and of all
        self._ids, self._noted = array("q"), list[tuple[int, ...]]()
        self._length: int | None = None
        self._ended = False
        #: Batches that the loader gave; those at the last call of the model, and at the last step.
        self.given = self.called = self.stepped = 0
        #: Batches given and not yet taken, with the writes into them so far.
        self.batches: deque[tuple[Any, int]] = deque()
        self._first = list[weakref.ref[Any]]()
        #: The loop may still take batches of it; `left`, it never took the last.
        self.open, self.left = True, False
        #: Micro-batches whose gradients are in the optimizer's steps.
        self.trained = 0
        #: Those before them that the loop left out, to resume.
        self.skipped = 0
        #: Those that the run had trained on before it was resumed.
        self.behind = 0
        #: An id that is no whole number, where there is one: then `ids` has none.
        self.odd = ""

    def begin(
        self, place: tuple[int, int] | None, length: int | None, order: int | None, limited: bool
    ) -> None:
        """Begins the sampler's ids."""
        self.place, self._length, self.order, self.limited, self.sampled = place, length, order, limited, True

    def note(self, ids: list[int], every: bool) -> None:
        """Notes a micro-batch's ids."""
        if every or self.count < MAX_COUNTED_IDS:
            self._noted.append(tuple(ids))
            if len(self._noted) == PACKED_BATCHES:
                self._pack()
        size = len(ids)
        self.sizes.append(size)
        self.count += size

    def give(self, batch: Any) -> None:
        """Notes a batch."""
        self.given += 1
        if len(self._first) < FIRST_BATCHES and (tensors := tensors_in(batch)):
            self._first.append(weakref.ref(tensors[0]))

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
        """Whether the loop left it before its end."""
        return self.left and 0 < self.given < (self.length or 0) and not self.limited

    @property
    def stored(self) -> bool:
        """Whether the loop still has the first batches, though all have passed: it trains on them again."""
        some = self._first[: len(self.sizes) - 1]  # the last one is in the loop's variable
        return bool(some) and all(batch() is not None for batch in some)

    def step(self, micro: int) -> tuple[list[int], list[int]]:
        """Returns the sizes and the ids of the last `micro` micro-batches trained on."""
        passed = self.skipped + self.trained
        before, sizes = sum(self.sizes[: passed - micro]), self.sizes[passed - micro : passed]
        return sizes, list(self.ids[before : before + sum(sizes)])


class Batches:
    """Iterates over the loader as its own iterator does, and tells its `watch` of batches and end."""

    def __init__(self, watch: Any, inner: Iterator[Any], epoch: Epoch) -> None:
        self._watch, self._inner, self._epoch = watch, inner, epoch

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        watch, epoch = self._watch, self._epoch
        watch.opened = epoch
        try:
            batch = next(self._inner)
        except StopIteration:
            watch.close(epoch)
            raise
        finally:
            watch.opened = None
        watch.give(epoch, batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __del__(self) -> None:
        if self._epoch.open:
            self._epoch.left = True
            self._watch.close(self._epoch)


class SizedBatches(Batches):
    """One with a length."""

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]
