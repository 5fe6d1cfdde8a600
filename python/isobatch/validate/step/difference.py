"""Weights and gradients put aside, and how far they are from others."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from isobatch.diagnosis.checksum import dense

Copies = list[Tensor | None]


class Difference:
    """How far some tensors are from a reference: `error` is relative L2, `ratio` how many times too large they are along
    it, `residual` what such a factor leaves unexplained, relative to them."""

    def __init__(self, found: Copies, reference: Copies) -> None:
        """A gradient that is None counts as zeros."""
        off = ff = fr = rr = 0.0
        for f, r in zip(found, reference, strict=True):
            some = f if f is not None else r
            if some is None:
                continue
            zeros = some.new_zeros(some.numel(), dtype=torch.float64)
            f, r = (zeros if t is None else t.double().flatten() for t in (f, r))
            off += float((f - r).square().sum())
            ff += float(f @ f)
            fr += float(f @ r)
            rr += float(r @ r)
        self.error = math.sqrt(off / rr) if rr else (0.0 if not ff else math.inf)
        self.ratio = fr / rr if rr else math.nan
        self.residual = math.sqrt(max(0.0, 1 - fr * fr / (ff * rr))) if ff and rr else math.nan


def kept(tensors: list[Tensor | None]) -> Copies:
    """Copies in the host's memory, where a device may have no room for them."""
    return [None if t is None else dense(t.detach()).to("cpu", copy=True) for t in tensors]


def weights(model: nn.Module) -> Copies:
    """The weights that are trained."""
    return kept([p for p in model.parameters() if p.requires_grad])


def grads(model: nn.Module) -> Copies:
    """Their gradients, None where there is none."""
    return kept([p.grad for p in model.parameters() if p.requires_grad])


def put(model: nn.Module, weights: Copies, grads: Copies | None = None) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, value in zip(trained, weights, strict=True):
        assert value is not None
        p.data.copy_(value)
    for p, grad in zip(trained, grads or [None] * len(trained), strict=True):
        p.grad = None if grad is None else grad.to(p.device)


def moved(after: Copies, before: Copies) -> Copies:
    """What a step has changed."""
    return [a - b for a, b in zip(after, before, strict=True) if a is not None and b is not None]
