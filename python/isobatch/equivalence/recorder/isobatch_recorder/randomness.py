"""Randomness in a step: generators are seeded, dropout is removed, batch norm and draws are noted."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch.nn.functional

from .record import Recorder

F: Any = torch.nn.functional
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def install(recorder: Recorder) -> None:
    """Patches rightful differences between two splits of the same training."""
    _take_dropout_out(recorder)
    _watch_batch_norm(recorder)


def seed(number: int) -> None:
    """Seeds torch's, Python's and, if installed, NumPy's generators; a script's own seeds come later."""
    torch.manual_seed(number)
    random.seed(number)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(number)


class Generators:
    """Notes draws between two passes (noise, masks, sampling), without a loader's for a row."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._states: list[Any] | None = None
        self._steps = -1

    def compare(self) -> None:
        """Compares the generators with their states after the pass before."""
        states = _states()
        steps = sum(self._recorder.steps.values())
        if self._states is not None:
            when = "within a step" if steps == self._steps else "between steps"
            for name, before, now in zip(("torch", "Python", "NumPy"), self._states, states):
                if before != now:
                    self._recorder.note(f"random draws of {name} {when}", "draws")
        self._states, self._steps = states, steps


def _states() -> list[Any]:
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), hash(random.getstate())]
    if "numpy" in sys.modules:
        _, keys, position, *_ = sys.modules["numpy"].random.get_state()
        states.append((keys.tobytes(), position))
    return states


def _take_dropout_out(recorder: Recorder) -> None:
    def keep(input: Any, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any) -> Any:
        if training and p:
            recorder.note("dropout off", "off")
            recorder.dropouts[f"{p:g}"] = recorder.dropouts.get(f"{p:g}", 0) + 1
        return input

    for name in DROPOUTS:
        if hasattr(F, name):
            setattr(F, name, keep)
    torch.dropout = keep  # type: ignore[assignment]
    attention = F.scaled_dot_product_attention

    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if dropout_p:
            recorder.note("dropout off", "off")
            recorder.dropouts[f"{dropout_p:g}"] = recorder.dropouts.get(f"{dropout_p:g}", 0) + 1
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    F.scaled_dot_product_attention = attend

    def keep_all(self: Any, p: Any = 0.5, *args: Any, **kwargs: Any) -> Any:
        """Stochastic depth draws a mask with probability p and divides by p: a mask of p keeps all."""
        recorder.note("stochastic depth off", "off")
        return self.copy_(p) if isinstance(p, torch.Tensor) else self.fill_(float(p))

    torch.Tensor.bernoulli_ = keep_all  # type: ignore[method-assign]


def _watch_batch_norm(recorder: Recorder) -> None:
    batch_norm = F.batch_norm

    def normalize(
        input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
        training: bool = False, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if training:
            recorder.note("batch norm", "batch norm")
            training = not recorder.settings["freeze"] or running_mean is None
        return batch_norm(input, running_mean, running_var, weight, bias, training, *args, **kwargs)

    F.batch_norm = normalize
