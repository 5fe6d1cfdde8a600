"""What a step's gradient is compared with: that of the mean over all its samples, computed without DDP.

One process can do the whole step of a few ranks. Of many it does the first ones': the plain sum of their own gradients must be what it
computes, and the plain sum over all ranks is then what DDP must reach. So the proof takes as long with 8 ranks as with 8,000.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from isobatch.diagnosis.chunks import dense
from isobatch.validate.step.difference import Copies, Difference, difference, grads, kept, trained
from isobatch.validate.step.training import Training

SEED = 20
RANKS = 8
"""At most so many ranks' samples does one process go through."""

SAME = Difference(error=0.0, ratio=1.0, residual=0.0)


class Reference(NamedTuple):
    """On rank 0 the gradient, and how far the sum that it is was off from one process; on the others nothing."""

    gradient: Copies | None
    off: Difference = SAME


class Way(NamedTuple):
    """How a loss is computed: what it `measured` does over a batch, the format of autocast, that of model and batch where it is not
    their own, and the loss scale."""

    measured: str
    amp: torch.dtype | None
    dtype: torch.dtype | None
    scale: float


def reference(training: Training, way: Way) -> Reference:
    """The gradient of the mean over the step. All ranks call it with their own gradients in place, under these ways; they are gone
    afterwards."""
    group, model = training.group, training.model
    if group.world_size <= RANKS:
        model.zero_grad(set_to_none=True)
        if group.rank:
            return Reference(None)
        _one_process(training, way)
        found = kept(grads(model))
        model.zero_grad(set_to_none=True)
        return Reference(found)
    units = training.units(training.micro_batches(SEED, dtype=way.dtype))
    total = group.sum(sum(units))
    first, whole = plain_mean(training, way.scale, RANKS), plain_mean(training, way.scale, group.world_size)
    model.zero_grad(set_to_none=True)
    if group.rank:
        return Reference(None)
    _one_process(training, way, total)
    off = difference(first, grads(model), device=group.device)
    model.zero_grad(set_to_none=True)
    return Reference(whole, off)


def plain_mean(training: Training, scale: float, ranks: int) -> Copies:
    """The sum of the first ranks' own gradients over the number of all, by an all-reduce of each; copies on rank 0, nothing on the
    others."""
    group, found = training.group, Copies()
    for p in trained(training.model):
        wide = torch.promote_types(p.dtype, torch.float32)
        if p.grad is None or group.rank >= ranks:
            own = torch.zeros_like(p, dtype=wide)
        else:
            own = dense(p.grad).to(wide) / (scale * group.world_size)
        own = own.detach().contiguous()
        dist.all_reduce(own)
        found.append(own.to("cpu", copy=True) if group.rank == 0 else None)
    return found


def _one_process(training: Training, way: Way, total: float | None = None) -> None:
    """Leaves in the model the gradient of the first ranks' samples, by this process alone, without DDP, micro-batch by micro-batch, so
    that only one of them is ever there. It is a mean over `total` units; None: over theirs."""
    weigh, model = training.workload.weight, training.model
    model.zero_grad(set_to_none=True)
    units, guess = 0.0, 0.0
    for rank, sizes in enumerate(training.sizes[:RANKS]):
        for index, n in enumerate(sizes):
            batch = training.samples(n, SEED, rank, index, way.dtype)
            unit = float(n if weigh is None else weigh(batch))
            # The sum of units is known at the end only; a guess at it keeps float16 gradients in their range until then.
            guess = guess or max(unit, 1.0) / n * training.batch
            share = (1.0 if way.measured == "sum" else unit) / guess
            training.lone_backward(batch, share * way.scale, way.amp)
            units += unit
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= guess / (total or units) / way.scale
