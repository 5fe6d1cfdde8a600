"""Random draws within a step that are alike for every row: which samples meet in a pass then changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .record import Recorder

BLOCK = 1 << 16
"""Numbers drawn at a time: the first ones of a block are the same whatever the size that is asked for."""

Fill = Callable[..., torch.Tensor]


def install(recorder: Recorder) -> None:
    """Patches the functions of torch that draw, where the run asks for it."""
    if not recorder.settings["alike"]:
        return
    draws = AlikeDraws(recorder)
    normal: Any = torch.Tensor.normal_
    uniform: Any = torch.Tensor.uniform_
    for name in ("randn", "randn_like"):
        setattr(torch, name, draws.floats(getattr(torch, name), normal))
    for name in ("rand", "rand_like"):
        setattr(torch, name, draws.floats(getattr(torch, name), uniform))
    for name in ("randint", "randint_like"):
        setattr(torch, name, draws.integers(getattr(torch, name), uniform))
    torch.bernoulli = draws.coins(torch.bernoulli, uniform)


class AlikeDraws:
    """Repeats one row over all rows of a draw, and over all passes of a step, by the draw's number within its pass."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pass: tuple[int, int] | None = None
        self._number = 0

    def floats(self, draw: Callable[..., Any], fill: Fill) -> Callable[..., Any]:
        """Wraps a function that draws floating-point numbers."""

        def call(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            if not self._applies(drawn, kwargs) or not drawn.is_floating_point():
                return drawn
            with torch.no_grad():
                return drawn.copy_(self._row(drawn, fill).to(drawn.dtype).expand_as(drawn))

        return call

    def integers(self, draw: Callable[..., Any], fill: Fill) -> Callable[..., Any]:
        """Wraps a function that draws integers below `high`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            bounds = [one for one in (*args, kwargs.get("low"), kwargs.get("high")) if type(one) is int]
            if not self._applies(drawn, kwargs) or not bounds:
                return drawn
            low, high = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
            row = low + (self._row(drawn, fill) * (high - low)).floor()
            return drawn.copy_(row.to(drawn.dtype).expand_as(drawn))

        return call

    def coins(self, draw: Callable[..., Any], fill: Fill) -> Callable[..., Any]:
        """Wraps a function that draws 0 or 1 by a tensor of probabilities."""

        def call(input: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._applies(input, kwargs):
                return draw(input, *args, **kwargs)
            return (self._row(input, fill).to(input.device) < input).to(input.dtype)

        return call

    def _applies(self, drawn: Any, kwargs: dict[str, Any]) -> bool:
        within = (
            bool(self._recorder.optimizers) and not self._recorder.busy and kwargs.get("generator") is None
        )
        applies = within and isinstance(drawn, torch.Tensor) and drawn.dim() >= 1 and len(drawn) > 0
        if applies:
            self._recorder.note("random draws made alike for all samples")
        return applies

    def _row(self, like: torch.Tensor, fill: Fill) -> torch.Tensor:
        steps = sum(self._recorder.steps.values())
        current = steps, sum(map(len, self._recorder.passes.values()))
        self._number = self._number + 1 if current == self._pass else 0
        self._pass = current
        count = like[:1].numel()
        block = torch.empty(-(-max(count, 1) // BLOCK) * BLOCK, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1000 + 97 * steps + self._number)
        return fill(block, generator=generator)[:count].reshape(like[:1].shape).to(like.device)
