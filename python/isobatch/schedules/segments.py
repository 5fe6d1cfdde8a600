"""The segments that most schedules are made of."""

from __future__ import annotations

from isobatch.schedules.form import Constant, Power, Segment


def line(start: float, steps: float, a: float, b: float) -> Segment:
    """A straight line from a to b, then b; a constant where the two are equal."""
    if a == b:
        return level(start, a)
    return Segment(start=start, origin=start, length=steps, a=a, b=b, shape=Power())


def level(start: float, value: float, *, after: bool = False) -> Segment:
    """A constant from `start` on."""
    return Segment(start=start, after=after, a=value, shape=Constant())
