"""What is sent through an all-reduce to see whether its sums are right: patterns whose partial sums every number format has exactly."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isobatch.diagnosis.chunks import chunks

ADDENDS = 64
"""Ranks at most that an element is not zero on: of 0, 1 and 2 that makes at most 128 in whatever order they are added, and
bfloat16 has every whole number up to 256."""

PIECE = 1 << 22
"""Elements that are looked at at once."""

ROW = 1 << 12
"""Elements of a pattern at least, repeated: short rows would each be copied and compared by themselves."""


class Pattern:
    """Elements that repeat: on each rank 0, 1, 2 in turn, shifted by the rank, and zero but on every so many ranks, shifted by the
    element. So each element has a sum of its own, and a rank that is left out or counted twice shows."""

    def __init__(self, rank: int, ranks: int, dtype: torch.dtype, device: torch.device) -> None:
        own, whole = values(rank, ranks), sums(ranks)
        times = -(-ROW // len(own))
        self._own, self._sums = (
            torch.from_numpy(np.tile(row, times)).to(device, dtype) for row in (own, whole)
        )

    def fill(self, buffer: Tensor) -> None:
        """Gives a buffer this rank's elements."""
        whole = buffer.numel() // len(self._own) * len(self._own)
        buffer[:whole].view(-1, len(self._own)).copy_(self._own)
        buffer[whole:].copy_(self._own[: buffer.numel() - whole])

    def wrong(self, buffer: Tensor) -> int:
        """The number of elements of a sum over all ranks that are wrong."""
        found = 0
        whole = buffer.numel() // len(self._sums) * len(self._sums)
        # By pieces, since what is compared takes room, too.
        for piece in chunks(buffer[:whole], max(1, PIECE // len(self._sums)) * len(self._sums)):
            found += _count(piece.view(-1, len(self._sums)), self._sums)
        return found + _count(buffer[whole:], self._sums[: buffer.numel() - whole])


def _count(found: Tensor, expected: Tensor) -> int:
    """The elements that differ. Mostly none does, and to see that takes less than to count them."""
    differ = found != expected
    return int(differ.sum()) if differ.any() else 0


def _stride(ranks: int) -> int:
    return -(-ranks // ADDENDS)


def values(rank: int, ranks: int) -> NDArray[np.int64]:
    """What a rank sends, until it repeats.

    >>> values(1, 2).tolist(), len(values(1, 16_384))
    ([1, 2, 0], 768)
    """
    stride = _stride(ranks)
    element = np.arange(3 * stride) + rank
    found: NDArray[np.int64] = np.where(element % stride == 0, element % 3, 0)
    return found


@cache
def sums(ranks: int) -> NDArray[np.int64]:
    """What it adds up to.

    >>> sums(2).tolist(), int(sums(16_384).max()) <= 128
    ([1, 3, 2], True)
    """
    found = np.zeros(3 * _stride(ranks), dtype=np.int64)
    for rank in range(ranks):
        found += values(rank, ranks)
    return found
