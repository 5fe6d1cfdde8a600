"""One optimizer step as it is compared: what it takes in, and what it does."""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from isobatch.equivalence.recorder.isobatch_recorder.sketch import size_of, sketch
from isobatch.equivalence.records import Vector

BUCKETS = 256
"""Of a tensor's sketch: the norm of a difference is known to a tenth."""


class Observation(msgspec.Struct, frozen=True):
    """A step of a process by its sketches, (buckets,) each: those of ranks add up.

    Attributes:
        gradient: that the optimizer applies.
        weights: the parameters after it.
        update: the change of the parameters by it.
    """

    gradient: Vector
    weights: Vector
    update: Vector


def sketched(tensors: Sequence[torch.Tensor | None], like: Sequence[torch.Tensor]) -> Vector:
    """Sketches tensors of the sizes of others; None counts as zeros."""
    parts = [torch.zeros(0, dtype=torch.float64)]
    for number, (tensor, sized) in enumerate(zip(tensors, like, strict=True)):
        empty = torch.zeros(size_of(sized, BUCKETS), dtype=torch.float64)
        parts.append(empty if tensor is None else sketch(number, tensor.detach(), BUCKETS))
    array: Vector = torch.cat(parts).numpy()
    return array


def change_of(weights: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> Vector:
    """Sketches the change of weights since a copy of them, on the device or the host."""
    parts = [np.zeros(0)]
    for number, (tensor, earlier) in enumerate(zip(weights, before, strict=True)):
        change = tensor.detach() - earlier.to(tensor.device)
        parts.append(sketch(number, change, BUCKETS).numpy())
    return np.concatenate(parts)
