"""Indices of rows drawn by a loop itself: recorded, or replaced by given rows, as a loader's are."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from .alike import drawing_line
from .record import Recorder


def install(recorder: Recorder) -> None:
    """Watches `randint` of torch and NumPy: a number for each sample of a pass, where no loader draws."""
    draws = IndexDraws(recorder)
    torch.randint = draws.watched(torch.randint)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.randint = draws.watched(numpy.random.randint)


class IndexDraws:
    """The draws of a line of the code while it trains: an evaluation, without gradients, keeps its own."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._remaining: list[int] | None = None

    def watched(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function of random integers."""

        @functools.wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            numbers = draw(*args, **kwargs)
            if kwargs.get("generator") is None and self._are_rows(numbers):
                numbers[:] = self._rows(drawing_line(), numbers.tolist(), type(numbers))
            return numbers

        return drawn

    def _are_rows(self, numbers: Any) -> bool:
        recorder = self._recorder
        if not recorder.optimizers or recorder.busy or recorder.drawn or not torch.is_grad_enabled():
            return False
        size = (recorder.settings["split"] or {}).get("micro_batch")
        has_values = not getattr(numbers, "is_meta", False)
        return has_values and getattr(numbers, "ndim", 0) == 1 and len(numbers) == size

    def _rows(self, line: str, own: list[int], kind: type) -> Any:
        """Keeps the rows drawn by a line; returns those given in their place."""
        recorder, rows = self._recorder, own
        fixed = recorder.settings["rows"]
        if fixed is not None and fixed["loader"] == line:
            if self._remaining is None:
                self._remaining = [*fixed["ranks"][recorder.rank % len(fixed["ranks"])]]
            if len(self._remaining) >= len(own):
                rows, self._remaining = self._remaining[: len(own)], self._remaining[len(own) :]
        recorder.indices.setdefault(line, []).append(own)
        return torch.tensor(rows) if issubclass(kind, torch.Tensor) else rows
