"""The whole tensors of a step, entry by entry, to place a mesh's parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .gradients import gradient_of, gradients_as_weights
from .sketch import whole

if TYPE_CHECKING:
    from .record import Recorder


def describe_entries(recorder: Recorder) -> dict[str, Any]:
    """Describes the tensors of this rank, and its own part of them."""
    own = [_local(parameter) for parameter in recorder.parameters]
    gradients = [gradient_of(parameter) for parameter in recorder.parameters]
    squares = [float(_local(g).double().square().sum()) for g in gradients if g is not None]
    return {
        "shapes": [list(tensor.shape) for _, tensor in recorder.tensors()],
        "held": sum(tensor.numel() for tensor in own),
        "held_norm": math.sqrt(sum(squares)),
        "groups_made": sorted([*recorder.group_sizes, *(n for mesh in recorder.meshes for n in mesh.shape)]),
    }


def write_entries(recorder: Recorder, name: str, *, with_gradient: bool) -> None:
    """Writes the weights as float32, and before a step the gradient behind them."""
    parts = [_flat(tensor) for _, tensor in recorder.tensors()]
    if with_gradient and recorder.whole_tensors is not None:
        with gradients_as_weights(recorder.parameters):
            parts += [_flat(tensor) for _, tensor in recorder.tensors()]
    elif with_gradient:
        gradients = ((parameter, gradient_of(parameter)) for parameter in recorder.parameters)
        parts += [_flat(torch.zeros_like(p) if g is None else g) for p, g in gradients]
    recorder.write(name, torch.cat(parts).numpy().tobytes())


def _flat(tensor: Any) -> torch.Tensor:
    entries = whole(tensor)
    return (entries.to_dense() if entries.is_sparse else entries).reshape(-1).float().cpu().clone()


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()
