"""Batches as loaders give them, and what a loss does over one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

REDUCTION_GATE = 1e-3
"""How far, relative to the loss, a mean or a sum of parts may be from the whole."""


def mapped(batch: Any, function: Callable[[Any], Any]) -> Any:
    """A batch with a function of each tensor in it, or of what else is neither a mapping nor a sequence."""
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [mapped(value, function) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return function(batch)


def part(batch: Any, start: int, stop: int) -> Any:
    """The samples from start to stop of a batch.

    >>> part({"x": range(4)}, 1, 3)
    {'x': range(1, 3)}
    >>> from collections import namedtuple
    >>> part(namedtuple("Pair", "x y")(range(4), range(4)), 1, 3)
    Pair(x=range(1, 3), y=range(1, 3))
    """
    return mapped(batch, lambda one: one[start:stop])


def size(batch: Any) -> int:
    """The samples in a batch, by the length of what it holds first.

    >>> size({"x": range(4), "y": range(4)}), size((range(3),))
    (4, 3)
    """
    if isinstance(batch, Mapping):
        return size(next(iter(batch.values())))
    if isinstance(batch, tuple | list):
        return size(batch[0])
    return len(batch)


def reduction(
    whole: float, losses: tuple[float, float], units: tuple[float, float], gate: float = REDUCTION_GATE
) -> Literal["mean", "sum", "neither"]:
    """What a loss does over a batch, by the losses of its two parts and what each counts.

    >>> reduction(2.5, (1.0, 3.0), (1, 3)), reduction(4.0, (1.0, 3.0), (1, 3)), reduction(9.0, (1.0, 3.0), (1, 3))
    ('mean', 'sum', 'neither')
    """
    mean = sum(unit * loss for unit, loss in zip(units, losses, strict=True)) / sum(units)
    if abs(whole - mean) <= gate * abs(whole):
        return "mean"
    return "sum" if abs(whole - sum(losses)) <= gate * abs(whole) else "neither"
