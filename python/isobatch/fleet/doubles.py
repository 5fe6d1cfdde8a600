"""Ids that two rows have: found by 64-bit hashes, of a fleet in blocks too, where the ids themselves would not fit in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.int64]

MOST = 1 << 27
"""Ids of a fleet in blocks that are kept in mind: a GiB."""

_LEAST = 1 << 20
"""Ids between two looks, at least."""


def hashes_of(ids: Any) -> Hashes:
    """A hash of each id, of NumPy or Arrow: equal ids have equal ones, and of 10^7 different ids two have the same one once in 10^5 times.

    Raises:
        TypeError: an id is a list, or of another kind that has no hash.
    """
    if hasattr(ids, "null_count"):
        if str(ids.type).removeprefix("u").startswith("int"):
            ids = ids.to_numpy()
        else:
            values = ids.to_pylist()
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind in "iu":
            return np.asarray(ids).astype(np.int64)
        values = ids.tolist()
    return np.fromiter(map(hash, values), np.int64, len(values))


def equal_ones(ordered: Hashes) -> Hashes:
    """Those that are there more than once, each once."""
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


class Seen:
    """The ids of a fleet that comes in blocks: 8 bytes each, and three times as much while it looks, which it does
    whenever their number has doubled."""

    def __init__(self) -> None:
        self.ids = 0
        """That are kept in mind."""
        self._looked = np.empty(0, np.int64)
        self._new: list[Hashes] = []
        self._waiting = 0

    def add(self, hashes: Hashes) -> Hashes:
        """Takes the ids of a block, which are all different and in order, and gives those that were found to be doubled by now."""
        hashes = hashes[: MOST - self.ids]
        self._new.append(hashes)
        self._waiting += len(hashes)
        self.ids += len(hashes)
        return self.look() if self._waiting >= max(_LEAST, len(self._looked)) else self._looked[:0]

    def look(self) -> Hashes:
        """Those that are doubled among all of them."""
        if len(self._new) + bool(len(self._looked)) < 2:
            return self._looked[:0]  # a single block
        every = np.concatenate([self._looked, *self._new])
        self._looked, self._new, self._waiting = every, [], 0
        every.sort(kind="stable")  # which merges what is in order already
        doubled = equal_ones(every)
        if len(doubled):
            self._looked = np.unique(every)  # those of two ids that have one hash are found once
        return doubled
