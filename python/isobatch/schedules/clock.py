"""The clock of a schedule: piecewise linear through (step, schedule step) knots, on with its first and last slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

Knots = Sequence[tuple[float, float]]


def composed(outer: Knots, inner: Knots) -> tuple[tuple[float, float], ...]:
    """The knots of inner(outer(step)); both rise."""
    outer, inner = _two(outer), _two(inner)
    knots = [(step, read_clock(inner, at)) for step, at in outer]
    knots += [(step_of(outer, step), at) for step, at in inner]
    kept: list[tuple[float, float]] = []
    for knot in sorted(knots):
        # Two knots that are one but for rounding would make a piece of any slope.
        if not kept or all(new - old > 4 * math.ulp(new) for new, old in zip(knot, kept[-1], strict=True)):
            kept.append(knot)
    return tuple(kept)


def _two(knots: Knots) -> Knots:
    """A single knot is a shift: with a second one it says so."""
    if len(knots) > 1:
        return knots
    ((step, at),) = knots
    return [(step, at), (step + 1, at + 1)]


def read_clock(knots: Knots, step: float) -> float:
    """The schedule step at a step."""
    x, y, slope = _piece(knots, step, 0)
    return y + (step - x) * slope


def step_of(knots: Knots, at: float) -> float:
    """The step at a schedule step."""
    x, y, slope = _piece(knots, at, 1)
    return x + (at - y) / slope


def _piece(knots: Knots, value: float, axis: int) -> tuple[float, float, float]:
    """The knot that `value` follows on an axis, and the slope there (schedule steps a step)."""
    if len(knots) == 1:
        return (*knots[0], 1.0)
    index = 0
    while index < len(knots) - 2 and knots[index + 1][axis] <= value:
        index += 1
    (x0, y0), (x1, y1) = knots[index], knots[index + 1]
    if value >= knots[-1][axis]:
        return (x1, y1, (y1 - y0) / (x1 - x0))
    return (x0, y0, (y1 - y0) / (x1 - x0))
