"""Clipping is noted and not applied: it hides a gradient of another size."""

from __future__ import annotations

from typing import Any

import torch

from .record import Recorder
from .sketch import whole


def install(recorder: Recorder) -> None:
    """Patches torch's gradient clipping."""
    utils: Any = torch.nn.utils
    module: Any = torch.nn.utils.clip_grad
    clip_grad_norm_ = module.clip_grad_norm_

    def measure_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        norm: torch.Tensor = clip_grad_norm_(tensors, float("inf"), *args, **kwargs)
        recorder.norms.append((float(whole(norm)), float(max_norm)))
        return norm

    def note_scale(
        parameters: Any, max_norm: float, total_norm: torch.Tensor, *args: Any, **kwargs: Any
    ) -> None:
        recorder.norms.append((float(whole(total_norm)), float(max_norm)))

    def note_value(*args: Any, **kwargs: Any) -> None:
        recorder.note("clip_grad_value_ not applied")

    for place in (utils, module):
        place.clip_grad_norm_ = measure_norm
        place.clip_grad_value_ = note_value
        if hasattr(module, "clip_grads_with_norm_"):
            place.clip_grads_with_norm_ = note_scale
