"""What a form says of itself without being evaluated: where it turns, where it ends, and in words."""

from __future__ import annotations

import math

from isobatch.schedules.arguments import STEP_LIMIT
from isobatch.schedules.clock import step_of
from isobatch.schedules.form import (
    Constant,
    Cycle,
    Exponential,
    Form,
    Inner,
    Power,
    Reciprocal,
    Segment,
    Table,
    Track,
)


def breakpoints(form: Form) -> list[float]:
    """The points, in the schedule's own steps before its clock, where a segment starts or ends."""
    found = {0.0}
    for track in form.tracks:
        for segment in track.segments:
            found.add(segment.start)
            found |= {segment.origin + segment.length * u for u in _turns(segment)}
        if track.cycle is not None:
            found.add(track.cycle.period)
    return sorted(x for x in found if x >= 0)


def _turns(segment: Segment) -> list[float]:
    """The u at which a segment's curve turns or ends."""
    match segment.shape:
        case Inner(form=form):
            return knots(form)
        case Table(values=values):
            return [max(range(len(values)), key=values.__getitem__), len(values) - 1]
        case Constant():
            return []
        case _:
            return [1.0]


def knots(form: Form) -> list[float]:
    """Breakpoints in optimizer steps, as far as the schedule is defined."""
    points = breakpoints(form)
    if form.clock:
        points = [step_of(form.clock, x) for x in points] + [step for step, _ in form.clock]
    last = math.inf if form.last is None else form.last
    return sorted(x for x in points if 0 <= x < STEP_LIMIT and x <= last)


def end(form: Form) -> float | None:
    """The step from which the schedule no longer changes, or None where there is none."""
    ends = [_track_end(track) for track in form.tracks]
    if any(e is None for e in ends):
        return None
    last = max(e for e in ends if e is not None)
    return last if not form.clock else step_of(form.clock, last)


def span(form: Form) -> float:
    """Returns the steps worth showing: the run, else up to the schedule's end, else past where its last segment starts."""
    stop = end(form) if form.run is None else form.run
    if stop is None:
        stop = 3 * max(*breakpoints(form), 1.0)
    return float(stop if form.last is None else min(stop, form.last))


def _track_end(track: Track) -> float | None:
    if track.cycle is not None:
        return _cycles_end(track.cycle)
    segment = track.segments[-1]
    match segment.shape:
        case Constant():
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
    """A line that names the segments."""
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
        case Constant():
            what = f"{segment.a:g}"
        case Inner(form=form):
            what = text(form)
        case Table(values=values):
            what = f"table of {len(values)}"
        case Power(stretch=1.0, exponent=1.0):
            what = f"linear {segment.a:g} → {segment.b:g} in {segment.length:g}"
        case Exponential(rate=rate, stairs=stairs):
            what = f"{segment.a:g} × {rate:g} {'in stairs of' if stairs else 'every'} {segment.length:g}"
        case Reciprocal(exponent=exponent):
            what = f"{segment.a:g} / (1 + x/{segment.length:g})^{exponent:g}"
        case shape:
            what = f"{shape.kind} {segment.a:g} → {segment.b:g} in {segment.length:g}"
    if isinstance(segment.shape, Exponential | Reciprocal) and segment.b:
        what += f", towards {segment.b:g}"
    return what if segment.start == 0 else f"from {segment.start:g} {what}"
