"""Schedules made of schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from isobatch.errors import InputError, must_be
from isobatch.schedules.arguments import rate, rising, span
from isobatch.schedules.form import Form, Inner, Segment, Track
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import line


def join(schedules: Sequence[Schedule], boundaries: Sequence[float]) -> Schedule:
    """One schedule after another, each restarted at 0 when its boundary is reached.

    Args:
        schedules: at least one schedule.
        boundaries: one step fewer than schedules; schedule i+1 plays from boundaries[i] on, as if that step were
            its step 0.

    Raises:
        InputError: when the counts do not match or the boundaries do not rise.

    >>> import isobatch as ib
    >>> s = ib.schedules.join([ib.schedules.constant(1.0), ib.schedules.linear(0.5, 10)], [4])
    >>> [s.at(x) for x in (3, 4, 9, 14)]
    [1.0, 0.5, 0.25, 0.0]
    """
    starts = [0.0, *rising("boundaries", boundaries, repeats=True)]
    if len(starts) != len(schedules):
        raise InputError(
            f"must be one fewer than the {len(schedules)} schedules, got {len(boundaries)}",
            field="boundaries",
        )
    segments: list[Segment] = []
    last: float | None = None
    for schedule, start, stop in zip(schedules, starts, [*starts[1:], math.inf], strict=True):
        if stop <= start:
            continue
        form = schedule.form
        if _is_plain(form):
            parts = [_moved(segment, start) for segment in form.tracks[0].segments]
        else:
            parts = [Segment(start=start, origin=start, shape=Inner(form=form), beyond=True)]
        parts[0] = msgspec.structs.replace(parts[0], start=start, after=False)
        segments += [part for part in parts if part.start < stop]
        if form.last is not None and start + form.last < stop and last is None:
            last = start + form.last
    run = schedules[-1].form.run
    return lone(*segments, last=last, run=None if run is None else starts[-1] + run)


def product(*schedules: Schedule) -> Schedule:
    """The product of schedules, step by step: a learning rate times factors.

    >>> import isobatch as ib
    >>> s = ib.schedules.product(ib.schedules.constant(0.1), ib.schedules.multistep(1.0, [10], gamma=0.5))
    >>> s.at(9), s.at(10)
    (0.1, 0.05)

    Raises:
        InputError: when no schedule is given.
    """
    if not schedules:
        raise InputError("a product must have at least one schedule, got none", field="schedules")
    tracks = []
    for schedule in schedules:
        form = schedule.form
        plain = _is_plain(form, cycle=True)
        whole = Track(segments=(Segment(shape=Inner(form=form), beyond=True),))
        tracks.append(form.tracks[0] if plain else whole)
    ends = [s.form.last for s in schedules if s.form.last is not None]
    runs = [s.form.run for s in schedules if s.form.run is not None]
    return Schedule(Form(tracks=tuple(tracks), last=min(ends, default=None), run=max(runs, default=None)))


def warmup(schedule: Schedule, steps: float, start: float = 0.0) -> Schedule:
    """A straight line from start to the schedule's first value over `steps`, then the schedule from its step 0.

    The first value is reached at x = steps. 0 steps leave the schedule as it is.

    >>> import isobatch as ib
    >>> ib.schedules.warmup(ib.schedules.cosine(1.0, 90), 10).values([0, 5, 10, 55, 100]).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    up, first = span("steps", steps), rate("start", start)
    if not isinstance(schedule, Schedule):
        raise must_be("a schedule", schedule, field="schedule")
    if up == 0:
        return schedule
    return join([lone(line(0.0, up, first, schedule.at(0))), schedule], [up])


def _is_plain(form: Form, *, cycle: bool = False) -> bool:
    """Whether the form is one track and nothing else, so that its segments can be taken as they are."""
    bare = Form(tracks=form.tracks[:1], last=form.last, run=form.run)
    return form == bare and (cycle or form.tracks[0].cycle is None)


def _moved(segment: Segment, by: float) -> Segment:
    return msgspec.structs.replace(segment, start=segment.start + by, origin=segment.origin + by)
