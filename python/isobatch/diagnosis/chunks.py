"""Tensors gone through piece by piece: what is computed in double precision needs room for a piece only."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

ELEMENTS = 1 << 22


def dense(tensor: Tensor) -> Tensor:
    """The tensor with its zeros: an embedding's gradient may be sparse."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def chunks(tensor: Tensor, elements: int = ELEMENTS) -> Iterator[Tensor]:
    """A tensor's elements in order, in pieces of at most so many.

    >>> [piece.tolist() for piece in chunks(torch.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    flat = dense(tensor.detach()).reshape(-1)
    for start in range(0, flat.numel(), elements):
        yield flat[start : start + elements]


def square(tensor: Tensor) -> Tensor:
    """The sum of the squares, in double precision: a scalar on the tensor's device.

    >>> float(square(torch.tensor([3.0, 4.0])))
    25.0
    """
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for piece in chunks(tensor):
        wide = piece.double()
        total += wide @ wide
    return total
