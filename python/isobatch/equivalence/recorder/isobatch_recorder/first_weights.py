"""The first weights of one script, given to another by the names of their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .record import Recorder
from .sketch import whole


def give(recorder: Recorder, module: Any) -> None:
    """Keeps a model's first weights in a file, or takes those of a file by their names."""
    file = Path(recorder.settings["weights"])
    own = {recorder.names[id(tensor)]: tensor for tensor in module.parameters()}
    if not file.exists():
        tensors = {name: whole(tensor).clone() for name, tensor in own.items()}
        if recorder.rank == 0:
            torch.save(tensors, file)
        return
    given = torch.load(file, weights_only=True)
    with torch.no_grad():
        for name, tensor in own.items():
            matches = [key for key in given if _is_inside(key, name) and given[key].shape == tensor.shape]
            if len(matches) == 1:
                tensor.copy_(_sharded(given[matches[0]], tensor))


def _sharded(given: torch.Tensor, like: Any) -> torch.Tensor:
    if not hasattr(like, "full_tensor"):
        return given
    return torch.distributed.tensor.distribute_tensor(given, like.device_mesh, like.placements)


def _is_inside(name: str, second: str) -> bool:
    """Tells whether a tensor has the name of another but for the modules around its model."""
    return f".{name}".endswith(f".{second}") or f".{second}".endswith(f".{name}")
