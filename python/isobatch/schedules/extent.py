"""Facts of a form without evaluating it: its clock, where it turns, where it ends, and its description."""

import math
from collections.abc import Sequence
from typing import TypeAlias

from isobatch.schedules.form import (
    STEP_LIMIT,
    Cycle,
    Exponential,
    Flat,
    Form,
    Inner,
    Power,
    Reciprocal,
    Segment,
    Table,
    Track,
)

# ---- the clock: piecewise linear through (step, schedule step) knots, on with its first and last slope ----

Knots: TypeAlias = Sequence[tuple[float, float]]


def composed(outer: Knots, inner: Knots) -> tuple[tuple[float, float], ...]:
    """Computes the knots of inner(outer(step)); both rise."""
    outer, inner = _two(outer), _two(inner)
    knots = [(step, read_clock(inner, at)) for step, at in outer]
    knots += [(step_of(outer, step), at) for step, at in inner]
    apart: list[tuple[float, float]] = []
    for knot in sorted(knots):
        # Two knots that are one but for rounding would make a piece of any slope.
        if not apart or all(new - old > 4 * math.ulp(new) for new, old in zip(knot, apart[-1], strict=True)):
            apart.append(knot)
    return tuple(apart)


def _two(knots: Knots) -> Knots:
    """Adds a second knot to a single one, a shift."""
    if len(knots) > 1:
        return knots
    ((step, at),) = knots
    return [(step, at), (step + 1, at + 1)]


def read_clock(knots: Knots, step: float) -> float:
    """Returns the schedule step at a step."""
    x, y, slope = _piece(knots, step, 0)
    return y + (step - x) * slope


def step_of(knots: Knots, at: float) -> float:
    """Returns the step at a schedule step."""
    x, y, slope = _piece(knots, at, 1)
    return x + (at - y) / slope


def _piece(knots: Knots, value: float, axis: int) -> tuple[float, float, float]:
    """Returns the last knot before `value` on an axis, and the slope there (schedule steps a step)."""
    if len(knots) == 1:
        return (*knots[0], 1.0)
    index = 0
    while index < len(knots) - 2 and knots[index + 1][axis] <= value:
        index += 1
    (x0, y0), (x1, y1) = knots[index], knots[index + 1]
    if value >= knots[-1][axis]:
        return (x1, y1, (y1 - y0) / (x1 - x0))
    return (x0, y0, (y1 - y0) / (x1 - x0))


# ---- where a form turns and ends ----


def breakpoints(form: Form) -> list[float]:
    """Returns the starts and ends of segments, in the schedule's own steps before its clock."""
    knots_found = {0.0}
    for track in form.tracks:
        for segment in track.segments:
            knots_found.add(segment.start)
            knots_found |= {segment.origin + segment.length * u for u in _turns(segment)}
        if track.cycle is not None:
            knots_found.add(track.cycle.period)
    return sorted(x for x in knots_found if x >= 0)


def _turns(segment: Segment) -> list[float]:
    """Returns the turns and the end of a segment's curve, as u."""
    match segment.shape:
        case Inner(form=form):
            return knots(form)
        case Table(values=values):
            return [max(range(len(values)), key=values.__getitem__), len(values) - 1]
        case Flat():
            return []
        case _:
            return [1.0]


def knots(form: Form) -> list[float]:
    """Returns the breakpoints in optimizer steps, as far as the schedule is defined."""
    points = breakpoints(form)
    if form.clock:
        points = [step_of(form.clock, x) for x in points] + [step for step, _ in form.clock]
    last = math.inf if form.last is None else form.last
    return sorted(x for x in points if 0 <= x < STEP_LIMIT and x <= last)


def end(form: Form) -> float | None:
    """Returns the first step after the schedule's last change, or None where there is none."""
    ends = [_track_end(track) for track in form.tracks]
    if any(e is None for e in ends):
        return None
    last = max(e for e in ends if e is not None)
    return last if not form.clock else step_of(form.clock, last)


def span(form: Form) -> float:
    """Returns the steps to show: the run, else until the end, else past the start of the last segment."""
    stop = end(form) if form.run is None else form.run
    if stop is None:
        stop = 3 * max(*breakpoints(form), 1.0)
    return float(stop if form.last is None else min(stop, form.last))


def _track_end(track: Track) -> float | None:
    if track.cycle is not None:
        return _cycles_end(track.cycle)
    segment = track.segments[-1]
    match segment.shape:
        case Flat():
            return segment.start or None
        case Exponential() | Reciprocal():
            return None
        case Table(values=values):
            return segment.origin + segment.length * (len(values) - 1)
        case Inner(form=form):
            inner = end(form)
            return None if inner is None else segment.origin + segment.length * inner
        case _:
            return segment.origin + segment.length


def _cycles_end(cycle: Cycle) -> float | None:
    if cycle.limit is None:
        return None
    growth = cycle.multiplier - 1
    try:
        lengths = math.expm1(cycle.limit * math.log1p(growth)) / growth if growth else float(cycle.limit)
    except OverflowError:
        return None
    # Whole periods that grow by a whole number end on a whole step.
    whole = cycle.multiplier == int(cycle.multiplier) and lengths < STEP_LIMIT
    over = cycle.period * (round(lengths) if whole else lengths)
    return over if over < STEP_LIMIT else None


def text(form: Form) -> str:
    """Describes the segments in one line."""
    tracks = " × ".join(_track_text(track) for track in form.tracks)
    notes = [] if form.scale == 1 else [f"scaled by {form.scale:g}"]
    notes += [] if form.low is None else [f"at least {form.low:g}"]
    notes += [] if form.high is None else [f"at most {form.high:g}"]
    notes += [f"clock of {len(form.clock)} knots"] if form.clock else []
    return f"Schedule({'; '.join([tracks, *notes])})"


def _track_text(track: Track) -> str:
    shown = [_segment_text(segment) for segment in track.segments[:4]]
    shown += [f"… {len(track.segments) - 4} more"] if len(track.segments) > 4 else []
    cycle = track.cycle
    repeat = "" if cycle is None else f", again every {cycle.period:g} × {cycle.multiplier:g}^i"
    return ", ".join(shown) + repeat


def _segment_text(segment: Segment) -> str:
    match segment.shape:
        case Flat():
            words = f"{segment.a:g}"
        case Inner(form=form):
            words = text(form)
        case Table(values=values):
            words = f"table of {len(values)}"
        case Power(stretch=1.0, exponent=1.0):
            words = f"linear {segment.a:g} → {segment.b:g} in {segment.length:g}"
        case Exponential(rate=rate, stairs=stairs):
            words = f"{segment.a:g} × {rate:g} {'in stairs of' if stairs else 'every'} {segment.length:g}"
        case Reciprocal(exponent=exponent):
            words = f"{segment.a:g} / (1 + x/{segment.length:g})^{exponent:g}"
        case shape:
            words = f"{shape.kind} {segment.a:g} → {segment.b:g} in {segment.length:g}"
    if isinstance(segment.shape, Exponential | Reciprocal) and segment.b:
        words += f", towards {segment.b:g}"
    return words if segment.start == 0 else f"from {segment.start:g} {words}"
