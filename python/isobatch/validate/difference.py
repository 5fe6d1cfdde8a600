"""Weights and gradients put aside, and how far they are from others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isobatch.diagnosis.tensors import ELEMENTS, dense

Copies = list[Tensor | None]


class Difference(NamedTuple):
    """How far some tensors are from a reference: `error` is relative L2, `ratio` how many times too large they are along
    it, `residual` what such a factor leaves unexplained, relative to them."""

    error: float
    ratio: float
    residual: float

    def after(self, other: Difference) -> Difference:
        """Combines it with the reference's own difference: the larger error, and both factors."""
        return Difference(
            max(self.error, other.error), self.ratio * other.ratio, max(self.residual, other.residual)
        )


def difference(
    found: Sequence[Tensor | None],
    reference: Sequence[Tensor | None],
    before: Copies | None = None,
    device: torch.device | None = None,
) -> Difference:
    """Compares tensors with a reference, piece by piece on the first ones' device: either may lie in the host's memory.

    Args:
        found, reference: one that is None counts as zeros.
        before: what is subtracted from both, to compare what a step has changed.
        device: where to compute, if not there.
    """
    sums: Tensor | None = None
    for f, r, b in zip(found, reference, before or [None] * len(reference), strict=True):
        some = f if f is not None else r
        if some is None or not some.numel():
            continue
        if sums is None:
            sums = torch.zeros(4, dtype=torch.float64, device=device or some.device)
        for start in range(0, some.numel(), ELEMENTS):
            x, y, z = (_piece(t, start, min(ELEMENTS, some.numel() - start), sums.device) for t in (f, r, b))
            x, y = x - z, y - z
            d = x - y
            sums += torch.stack([d @ d, x @ x, x @ y, y @ y])
    off, ff, fr, rr = (0.0,) * 4 if sums is None else sums.tolist()
    return Difference(
        error=math.sqrt(off / rr) if rr else (0.0 if not ff else math.inf),
        ratio=fr / rr if rr else math.nan,
        residual=math.sqrt(max(0.0, 1 - fr * fr / (ff * rr))) if ff and rr else math.nan,
    )


def _piece(tensor: Tensor | None, start: int, elements: int, device: torch.device) -> Tensor:
    """Returns a piece of a tensor in double precision."""
    if tensor is None:
        return torch.zeros(elements, dtype=torch.float64, device=device)
    return dense(tensor.detach()).reshape(-1)[start : start + elements].to(device).double()


def copy_to_host(tensors: Sequence[Tensor | None]) -> Copies:
    """Copies tensors into the host's memory, where a device may have no room for them."""
    return [None if t is None else dense(t.detach()).to("cpu", copy=True) for t in tensors]


def trained(model: nn.Module) -> list[Tensor]:
    """Returns the trained weights."""
    return [p for p in model.parameters() if p.requires_grad]


def grads(model: nn.Module) -> list[Tensor | None]:
    """Returns their gradients, None where there is none."""
    return [p.grad for p in trained(model)]


def put(model: nn.Module, weights: Copies, grads: Copies | None = None) -> None:
    """Sets the trained weights to these values, and their gradients."""
    for p, value in zip(trained(model), weights, strict=True):
        assert value is not None
        p.data.copy_(value)
    for p, grad in zip(trained(model), grads or [None] * len(weights), strict=True):
        p.grad = None if grad is None else grad.to(p.device, copy=True)
