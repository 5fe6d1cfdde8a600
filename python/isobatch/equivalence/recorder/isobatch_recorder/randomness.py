"""What is random in a step: dropout is taken out, and other draws are alike for every row where that is asked for.

A draw that falls on other samples at another split would make two splits of the same training differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .record import Recorder

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
BLOCK = 1 << 16
"""Numbers drawn at a time: the first ones of a block are the same whatever the size that is asked for."""


def install(recorder: Recorder) -> None:
    """Seeds every generator, and patches what draws."""
    seed(0)
    _take_dropout_out(recorder)
    _watch_batch_norm(recorder)
    if recorder.settings["alike"]:
        _draw_alike(recorder)


def seed(number: int) -> None:
    """Seeds torch's and Python's generators, and NumPy's where it is there; a script that seeds them itself does so later."""
    torch.manual_seed(number)
    random.seed(number)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(number)


class Generators:
    """Notes draws between two passes of a step: noise, masks, sampling; dropout is out already."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._states: list[Any] | None = None
        self._steps = -1

    def compare(self) -> None:
        """Compares the generators with what they were after the pass before, within a step."""
        states = _states()
        steps = sum(self._recorder.steps.values())
        if self._states is not None and steps == self._steps:
            for name, before, now in zip(("torch", "Python", "NumPy"), self._states, states):
                if before != now:
                    self._recorder.note(f"random draws of {name} within a step")
        self._states, self._steps = states, steps


def _states() -> list[Any]:
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), hash(random.getstate())]
    if "numpy" in sys.modules:
        kind, keys, position, *_ = sys.modules["numpy"].random.get_state()
        states.append((kind, keys.tobytes(), position))
    return states


def _take_dropout_out(recorder: Recorder) -> None:
    def keep(input: Any, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any) -> Any:
        if training and p:
            recorder.note("dropout off")
        return input

    for name in DROPOUTS:
        if hasattr(F, name):
            setattr(F, name, keep)
    torch.dropout = keep
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
            recorder.note("dropout off")
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    F.scaled_dot_product_attention = attend

    def keep_all(self: Any, p: Any = 0.5, *args: Any, **kwargs: Any) -> Any:
        """Stochastic depth draws a mask with probability p and divides by p: a mask of p keeps all."""
        recorder.note("stochastic depth off")
        return self.copy_(p) if isinstance(p, torch.Tensor) else self.fill_(float(p))

    torch.Tensor.bernoulli_ = keep_all


def _watch_batch_norm(recorder: Recorder) -> None:
    batch_norm = F.batch_norm
    freeze = recorder.settings["freeze"]

    def normalize(
        input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if training:
            recorder.note("batch norm")
            training = not freeze or running_mean is None
        return batch_norm(input, running_mean, running_var, weight, bias, training, *args, **kwargs)

    F.batch_norm = normalize


def _draw_alike(recorder: Recorder) -> None:
    """Makes every row of a draw within a step the same, and the same in each pass: which samples meet in a pass then changes nothing."""
    draws: dict[str, int] = {"passes": -1, "number": 0}

    def generator() -> torch.Generator:
        passes = (sum(recorder.steps.values()), sum(len(p) for p in recorder.passes.values()))
        if draws["passes"] != hash(passes):
            draws.update(passes=hash(passes), number=0)
        draws["number"] += 1
        return torch.Generator().manual_seed(1000 + 97 * sum(recorder.steps.values()) + draws["number"])

    def numbers(
        like: torch.Tensor, fill: Callable[[torch.Tensor, torch.Generator], torch.Tensor]
    ) -> torch.Tensor:
        count = like[:1].numel()
        block = torch.empty(-(-max(count, 1) // BLOCK) * BLOCK, dtype=torch.float64)
        row = fill(block, generator())[:count].reshape(like[:1].shape)
        return like.copy_(row.to(like.dtype).expand_as(like))

    def alike(
        draw: Callable[..., Any], fill: Callable[[Any, torch.Tensor, torch.Generator], torch.Tensor]
    ) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            plain = (
                isinstance(drawn, torch.Tensor)
                and drawn.dim() >= 1
                and drawn.shape[0] > 0
                and drawn.is_floating_point()
            )
            if not recorder.optimizers or recorder.busy or not plain or kwargs.get("generator") is not None:
                return drawn
            recorder.note("random draws made alike for all samples")
            with torch.no_grad():
                return numbers(drawn, lambda block, g: fill(drawn, block, g))

        return call

    def normal(_: Any, block: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return NORMAL(block, generator=g)

    def uniform(_: Any, block: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return UNIFORM(block, generator=g)

    NORMAL, UNIFORM = torch.Tensor.normal_, torch.Tensor.uniform_
    for name in ("randn", "randn_like"):
        setattr(torch, name, alike(getattr(torch, name), normal))
    for name in ("rand", "rand_like"):
        setattr(torch, name, alike(getattr(torch, name), uniform))
    for name in ("randint", "randint_like"):
        setattr(torch, name, _integers_alike(recorder, getattr(torch, name), generator, UNIFORM))
    bernoulli = torch.bernoulli

    def flip(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.optimizers or recorder.busy or input.dim() < 1 or kwargs.get("generator") is not None:
            return bernoulli(input, *args, **kwargs)
        recorder.note("random draws made alike for all samples")
        levels = numbers(torch.empty_like(input), lambda block, g: UNIFORM(block, generator=g))
        return (levels < input).to(input.dtype)

    torch.bernoulli = flip


def _integers_alike(recorder: Recorder, draw: Any, generator: Any, uniform: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        drawn = draw(*args, **kwargs)
        bounds = [one for one in (*args, kwargs.get("low"), kwargs.get("high")) if isinstance(one, int)]
        if (
            not recorder.optimizers
            or recorder.busy
            or drawn.dim() < 1
            or not len(drawn)
            or not bounds
            or kwargs.get("generator")
        ):
            return drawn
        recorder.note("random draws made alike for all samples")
        low, high = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        count = drawn[:1].numel()
        block = torch.empty(-(-max(count, 1) // BLOCK) * BLOCK, dtype=torch.float64)
        levels = uniform(block, generator=generator())[:count].reshape(drawn[:1].shape)
        return drawn.copy_((low + (levels * (high - low)).floor()).to(drawn.dtype).expand_as(drawn))

    return call
