"""States of a training beside its weights and its optimizer: buffers, averaged weights, loss scalers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from .sketch import sketch, whole


def install(recorder: Any) -> None:
    """Watches the making of averaged models and loss scalers."""
    for kind in (AveragedModel, torch.amp.GradScaler):
        _watch(kind, recorder)


def _watch(kind: Any, recorder: Any) -> None:
    initialize = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        recorder.beside.append(self)

    kind.__init__ = __init__


def describe_states(recorder: Any) -> dict[str, list[list[float]]]:
    """Returns the signed sum and the norm of each state, by its name."""
    states: dict[str, list[list[float]]] = {}
    for name, tensor in _states(recorder):
        if not tensor.is_complex():
            entries = whole(tensor).double()
            states.setdefault(name, []).append([float(sketch(0, entries, 1)), float(entries.norm())])
    return states


def _states(recorder: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for model in recorder.models:
        for name, tensor in model.named_buffers():
            yield f"the buffer {name}", tensor
    for thing in recorder.beside:
        if isinstance(thing, AveragedModel):
            yield from (("the averaged weights", tensor) for tensor in thing.parameters())
        elif thing.is_enabled():
            yield "the loss scale", torch.tensor(float(thing.get_scale()))
