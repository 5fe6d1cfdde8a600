"""Random draws, made alike for every row: the samples of a pass can then be any."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data._utils import fetch as fetching

from .record import Recorder

BLOCK = 1 << 16
"""Numbers drawn at a time: the first ones of a block are the same whatever the size that is asked for."""

_OUTSIDE = (os.path.dirname(__file__), os.path.dirname(torch.__file__))

UNIFORM: Any = torch.Tensor.uniform_


def install(recorder: Recorder) -> None:
    """Patches torch's random functions and the loading of rows."""
    draws = AlikeDraws(recorder)
    # torch lists the functions under `with torch.device(…)` once: its own, before they are wrapped.
    getattr(importlib.import_module("torch.utils._device"), "_device_constructors", list)()
    _seed_rows(draws)
    exponential: Any = torch.Tensor.exponential_
    for place, name, wrapped in (
        (torch, "randn", draws.floats(torch.randn, torch.Tensor.normal_)),
        (torch, "randn_like", draws.floats(torch.randn_like, torch.Tensor.normal_)),
        (torch, "rand", draws.floats(torch.rand, UNIFORM)),
        (torch, "rand_like", draws.floats(torch.rand_like, UNIFORM)),
        (torch, "randint", draws.integers(torch.randint)),
        (torch, "randint_like", draws.integers(torch.randint_like)),
        (torch, "bernoulli", draws.coins(torch.bernoulli)),
        (torch, "multinomial", draws.choices(torch.multinomial)),
        (torch.Tensor, "exponential_", draws.floats(exponential, exponential)),
    ):
        setattr(place, name, wrapped)


class AlikeDraws:
    """Repeats one row over all rows of a draw, and over all draws of a step by the same line of code.

    What a loader's collator draws is always alike, in every step; elsewhere where the run asks for it.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._switched: bool | None = None  # for a while; None: as the run asks for it
        self._collates = False

    @contextlib.contextmanager
    def applying(self, *, applies: bool, collates: bool = False) -> Iterator[None]:
        """Switches for a while: draws of a collator are alike, those of a row stay as they are."""
        before, self._switched, self._collates = self._switched, applies, collates
        try:
            yield
        finally:
            self._switched, self._collates = before, False

    def floats(self, draw: Callable[..., Any], fill: Any) -> Callable[..., Any]:
        """Wraps a random function of floating-point numbers."""

        def call(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            if not self._applies(drawn, kwargs) or not drawn.is_floating_point():
                return drawn
            with torch.no_grad():
                return drawn.copy_(self._row(drawn, fill).to(drawn.dtype).expand_as(drawn))

        return call

    def integers(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a random function of integers below `high`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            bounds = [bound for bound in (*args, kwargs.get("low"), kwargs.get("high")) if type(bound) is int]
            if not self._applies(drawn, kwargs) or not bounds:
                return drawn
            low, high = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
            row = low + (self._row(drawn, UNIFORM) * (high - low)).floor()
            return drawn.copy_(row.to(drawn.dtype).expand_as(drawn))

        return call

    def coins(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a random function of 0 and 1 by a tensor of probabilities."""

        def call(input: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._applies(input, kwargs):
                return draw(input, *args, **kwargs)
            return (self._row(input, UNIFORM).to(input.device) < input).to(input.dtype)

        return call

    def choices(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `multinomial`: places of each row by its probabilities, several only with replacement."""

        def call(input: Any, num_samples: int, replacement: bool = False, **kwargs: Any) -> Any:
            drawn = draw(input, num_samples, replacement, **kwargs)
            if drawn.dim() != 2 or not (replacement or num_samples == 1) or not self._applies(drawn, kwargs):
                return drawn
            levels = input.double().cumsum(1)
            row = self._row(drawn, UNIFORM).to(levels.dtype) * levels[:, -1:]
            return torch.searchsorted(levels, row.contiguous()).clamp(max=input.shape[1] - 1)

        return call

    def _applies(self, drawn: Any, kwargs: dict[str, Any]) -> bool:
        applies = self._recorder.settings["alike"] if self._switched is None else self._switched
        within = applies and self._recorder.optimizers and not self._recorder.busy
        has_rows = isinstance(drawn, torch.Tensor) and drawn.dim() >= 1 and len(drawn) > 0
        if not within or kwargs.get("generator") is not None or not has_rows:
            return False
        self._recorder.note("the same random numbers for every sample")
        return True

    def _row(self, like: torch.Tensor, fill: Any) -> torch.Tensor:
        # A loader may be a batch ahead of the step.
        steps = 0 if self._collates else sum(self._recorder.steps.values())
        count = like[:1].numel()
        block = torch.empty(-(-max(count, 1) // BLOCK) * BLOCK, dtype=torch.float64)
        seed = zlib.crc32(drawing_line().encode())
        generator = torch.Generator().manual_seed(1000 * steps + seed)
        row: torch.Tensor = fill(block, generator=generator)[:count]
        return row.reshape(like[:1].shape).to(like.device)


def drawing_line() -> str:
    """Names the drawing line: the innermost one outside of torch, since DDP may call a pass or not."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OUTSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _seed_rows(draws: AlikeDraws) -> None:
    """Seeds the generators by each loaded row: its augmentation is the same in any batch."""

    def fetch(self: Any, index: Any) -> Any:
        numpy = sys.modules.get("numpy")
        numpy_state = None if numpy is None else numpy.random.get_state()
        torch_state, python_state = torch.get_rng_state(), random.getstate()
        try:
            with draws.applying(applies=False):
                items = (
                    [_load(self.dataset, row) for row in index]
                    if self.auto_collation
                    else _load(self.dataset, index)
                )
            _seed(0)
            with draws.applying(applies=True, collates=True):
                return self.collate_fn(items)
        finally:
            torch.set_rng_state(torch_state)
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)

    fetching._MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def _load(dataset: Any, row: Any) -> Any:
    _seed(zlib.crc32(repr(int(row) if hasattr(row, "__index__") else row).encode()))
    return dataset[row]


def _seed(number: int) -> None:
    torch.default_generator.manual_seed(number)
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)
