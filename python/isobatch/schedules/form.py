"""The one form that every schedule has: what Rust evaluates and JSON holds.

Schedule = clock, tracks, combine: floor + (A(x) − floor)·B(x)·…, clip to low … high, scale
Track    = segments, and maybe a cycle
Segment  = from start on: b + (a − b)·shape(u), u = (x − origin)/length, clamped at 1 unless `beyond`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar

import msgspec

from isobatch._core import Schedule
from isobatch.errors import InputError

SCHEMA = 1
STEP_LIMIT = 2.0**53


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class _Shape(_Value, frozen=True, kw_only=True, tag_field="kind"):
    kind: ClassVar[str]


class Constant(_Shape, frozen=True, kw_only=True, tag="constant"):
    """1 throughout."""

    kind: ClassVar[str] = "constant"


class Power(_Shape, frozen=True, kw_only=True, tag="power"):
    """(1 − u^stretch)^exponent."""

    kind: ClassVar[str] = "power"
    stretch: float = 1.0
    exponent: float = 1.0


class Cosine(_Shape, frozen=True, kw_only=True, tag="cosine"):
    """((1 + cos π·v)/2)^exponent with v = waves·u^stretch, or its fraction where `wrap`."""

    kind: ClassVar[str] = "cosine"
    waves: float = 1.0
    stretch: float = 1.0
    exponent: float = 1.0
    wrap: bool = False


class Exponential(_Shape, frozen=True, kw_only=True, tag="exponential"):
    """rate^u, or rate^⌊u⌋ where `stairs`."""

    kind: ClassVar[str] = "exponential"
    rate: float
    stairs: bool = False


class Reciprocal(_Shape, frozen=True, kw_only=True, tag="reciprocal"):
    """(1 + u)^−exponent."""

    kind: ClassVar[str] = "reciprocal"
    exponent: float = 0.5


class Rex(_Shape, frozen=True, kw_only=True, tag="rex"):
    """(1 − u)/(1 − u/2)."""

    kind: ClassVar[str] = "rex"


class Tanh(_Shape, frozen=True, kw_only=True, tag="tanh"):
    """(1 − tanh(lower·(1 − u) + upper·u))/2."""

    kind: ClassVar[str] = "tanh"
    lower: float
    upper: float


class Table(_Shape, frozen=True, kw_only=True, tag="table"):
    """values[u], straight lines between, the last one held."""

    kind: ClassVar[str] = "table"
    values: tuple[float, ...]


class Inner(_Shape, frozen=True, kw_only=True, tag="inner"):
    """Another schedule, read at u."""

    kind: ClassVar[str] = "inner"
    form: Form


Shape = Constant | Power | Cosine | Exponential | Reciprocal | Rex | Tanh | Table | Inner


class Segment(_Value, frozen=True, kw_only=True):
    """From `start` on (just past it where `after`): b + (a − b)·shape((x − origin)/length)."""

    start: float = 0.0
    after: bool = False
    origin: float = 0.0
    length: float = 1.0
    a: float = 1.0
    b: float = 0.0
    shape: Shape
    beyond: bool = False


class Cycle(_Value, frozen=True, kw_only=True):
    """Cycle i takes period·multiplier^i steps; after `limit` cycles the value stays at `end`.

    In cycle i every `a` is multiplied by peak_decay^i, or the distance from `about` by amplitude_decay^i.
    `rounded` finds the phase with torch's CyclicLR's own rounding.
    """

    period: float
    multiplier: float = 1.0
    peak_decay: float = 1.0
    amplitude_decay: float = 1.0
    about: float = 0.0
    limit: int | None = None
    end: float = 0.0
    rounded: bool = False


class Track(_Value, frozen=True, kw_only=True):
    """Segments in the order of their starts, and maybe a cycle that repeats them."""

    segments: tuple[Segment, ...]
    cycle: Cycle | None = None


class Form(_Value, frozen=True, kw_only=True):
    """A whole schedule. `clock` holds (step, schedule step) knots; `last` is the last step that has a value."""

    tracks: tuple[Track, ...]
    clock: tuple[tuple[float, float], ...] = ()
    floor: float = 0.0
    low: float | None = None
    high: float | None = None
    scale: float = 1.0
    last: float | None = None


class _Document(_Value, frozen=True, kw_only=True):
    schema: int
    form: Form


# ---- reading arguments ------------------------------------------------------------------------------------------


def number(field: str, value: object) -> float:
    """`value` as a finite float, or an InputError that names the field."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{value!r} is not a finite number", field=field)
    return float(value)


def rate(field: str, value: object) -> float:
    """`value` as a learning rate or share: a finite number of at least 0."""
    result = number(field, value)
    if result < 0:
        raise InputError(f"{value!r} is below 0", field=field)
    return result


def length(field: str, value: object) -> float:
    """`value` as a number of steps above 0."""
    result = number(field, value)
    if not 0 < result < STEP_LIMIT:
        raise InputError(f"{value!r} is not a number of steps above 0 and below 2^53", field=field)
    return result


def span(field: str, value: object) -> float:
    """`value` as a number of steps, 0 allowed."""
    result = number(field, value)
    if not 0 <= result < STEP_LIMIT:
        raise InputError(f"{value!r} is not a number of steps from 0 to below 2^53", field=field)
    return result


def rising(field: str, values: Iterable[object], *, repeats: bool = False) -> list[float]:
    """Step boundaries that rise; `repeats` lets one be listed more than once."""
    result = [span(field, value) for value in values]
    for before, after in pairwise(result):
        if after < before or (after == before and not repeats):
            raise InputError(f"boundaries must rise: {after:g} follows {before:g}", field=field)
    return result


# ---- building ---------------------------------------------------------------------------------------------------


def lone(*segments: Segment, cycle: Cycle | None = None, **rest: Any) -> Schedule:
    """The schedule of one track."""
    return Schedule(Form(tracks=(Track(segments=segments, cycle=cycle),), **rest))


def line(start: float, steps: float, a: float, b: float) -> Segment:
    """A straight line from a to b, then b; a constant where the two are equal."""
    if a == b:
        return level(start, a)
    return Segment(start=start, origin=start, length=steps, a=a, b=b, shape=Power())


def level(start: float, value: float, *, after: bool = False) -> Segment:
    """A constant from `start` on."""
    return Segment(start=start, after=after, a=value, shape=Constant())


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
            f"{len(schedules)} schedules need {max(len(schedules) - 1, 0)} boundaries, not {len(boundaries)}",
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
    return lone(*segments, last=last)


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
        raise InputError("a product needs at least one schedule", field="schedules")
    tracks = []
    for schedule in schedules:
        form = schedule.form
        plain = _is_plain(form, cycle=True)
        whole = Track(segments=(Segment(shape=Inner(form=form), beyond=True),))
        tracks.append(form.tracks[0] if plain else whole)
    ends = [s.form.last for s in schedules if s.form.last is not None]
    return Schedule(Form(tracks=tuple(tracks), last=min(ends, default=None)))


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """The same schedule, every value multiplied by `factor` (at least 0).

    >>> import isobatch as ib
    >>> ib.schedules.scaled(ib.schedules.cosine(0.1, 100), 2).at(50)
    0.1
    """
    form: Form = schedule.form
    return Schedule(msgspec.structs.replace(form, scale=form.scale * rate("factor", factor)))


def with_clock(schedule: Schedule, points: Iterable[tuple[float, float]]) -> Schedule:
    """The same schedule read through a clock: at step x it has the value that it had at clock(x).

    The clock is piecewise linear through `points`, (step, schedule step) pairs that rise in both coordinates, and
    goes on with the slope of its first and last piece; a single point is a shift. Clocks compose: a second one is
    read first.

    >>> import isobatch as ib
    >>> s = ib.schedules.linear(1.0, 100)
    >>> bent = s.with_clock([(0, 0), (50, 50), (51, 52)])      # from step 50 on, twice the batch
    >>> bent.at(50), bent.at(60), bent.at(75)
    (0.5, 0.30000000000000004, 0.0)

    Raises:
        InputError: when a number is not finite or the points do not rise.
    """
    outer = [(number("clock", step), number("clock", at)) for step, at in points]
    form: Form = schedule.form
    # The core checks the points; composing needs them sound.
    checked = Schedule(msgspec.structs.replace(form, clock=tuple(outer), last=None))
    if not outer:
        raise InputError("needs at least one (step, schedule step) point", field="clock")
    last = None if form.last is None else _invert(outer, form.last)
    if not form.clock:
        return Schedule(msgspec.structs.replace(checked.form, last=last))
    if len(outer) == 1:
        outer.append((outer[0][0] + 1, outer[0][1] + 1))
    inner = list(form.clock)
    if len(inner) == 1:
        inner.append((inner[0][0] + 1, inner[0][1] + 1))
    knots = {step: _read(inner, at) for step, at in outer}
    for step, at in inner:
        knots.setdefault(_invert(outer, step), at)
    return Schedule(msgspec.structs.replace(form, clock=tuple(sorted(knots.items())), last=last))


def _piece(knots: Sequence[tuple[float, float]], value: float, axis: int) -> tuple[float, float, float]:
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


def _read(knots: Sequence[tuple[float, float]], step: float) -> float:
    x, y, slope = _piece(knots, step, 0)
    return y + (step - x) * slope


def _invert(knots: Sequence[tuple[float, float]], at: float) -> float:
    x, y, slope = _piece(knots, at, 1)
    return x + (at - y) / slope


def _is_plain(form: Form, *, cycle: bool = False) -> bool:
    """Whether the form is one track and nothing else, so that its segments can be taken as they are."""
    bare = Form(tracks=form.tracks[:1], last=form.last)
    return form == bare and (cycle or form.tracks[0].cycle is None)


def _moved(segment: Segment, by: float) -> Segment:
    return msgspec.structs.replace(segment, start=segment.start + by, origin=segment.origin + by)


# ---- JSON -------------------------------------------------------------------------------------------------------


def to_json(schedule: Schedule) -> str:
    """The schedule as JSON text: its form and the schema version."""
    return msgspec.json.encode(_Document(schema=SCHEMA, form=schedule.form)).decode()


def from_json(text: str | bytes) -> Schedule:
    """The schedule that `to_json` wrote.

    Raises:
        InputError: when the text is no such JSON, or of a schema that this version does not know.
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise InputError(f"not a schedule's JSON: {error}", field="json") from None
    if document.schema != SCHEMA:
        raise InputError(f"{document.schema} is not known; this version reads {SCHEMA}", field="schema")
    return Schedule(document.form)


# ---- what a schedule says of itself -----------------------------------------------------------------------------


def breakpoints(form: Form) -> list[float]:
    """The points, in the schedule's own steps before its clock, where a segment starts or ends."""
    found = {0.0}
    for track in form.tracks:
        for segment in track.segments:
            found.add(segment.start)
            if isinstance(segment.shape, Inner):
                found |= {segment.origin + segment.length * x for x in _knots(segment.shape.form)}
            elif isinstance(segment.shape, Table):
                count = len(segment.shape.values)
                top = max(range(count), key=segment.shape.values.__getitem__)
                found |= {segment.origin + segment.length * x for x in (top, count - 1)}
            elif not isinstance(segment.shape, Constant):
                found.add(segment.origin + segment.length)
        if track.cycle is not None:
            found.add(track.cycle.period)
    return sorted(x for x in found if x >= 0)


def _knots(form: Form) -> list[float]:
    """Breakpoints in optimizer steps."""
    points = breakpoints(form)
    if form.clock:
        points = [_invert(form.clock, x) for x in points] + [step for step, _ in form.clock]
    return sorted(x for x in points if x >= 0 and (form.last is None or x <= form.last))


def peak(schedule: Schedule) -> float:
    """The highest value at the points where the schedule starts, turns or ends."""
    return max(schedule.at(x) for x in _knots(schedule.form) if x < STEP_LIMIT)


def end(schedule: Schedule) -> float | None:
    """The step from which the schedule no longer changes, or None where there is none."""
    form: Form = schedule.form
    ends = [_track_end(track) for track in form.tracks]
    if any(e is None for e in ends):
        return None
    last = max(e for e in ends if e is not None)
    return last if not form.clock else _invert(form.clock, last)


def _track_end(track: Track) -> float | None:
    cycle = track.cycle
    if cycle is not None:
        if cycle.limit is None:
            return None
        powers = (
            sum(cycle.multiplier**i for i in range(cycle.limit)) if cycle.multiplier != 1 else cycle.limit
        )
        return cycle.period * powers
    segment = track.segments[-1]
    match segment.shape:
        case Constant():
            return segment.start or None
        case Exponential() | Reciprocal():
            return None
        case Table(values=values):
            return segment.origin + segment.length * (len(values) - 1)
        case Inner(form=form):
            inner = end(Schedule(form))
            return None if inner is None else segment.origin + segment.length * inner
        case _:
            return segment.origin + segment.length


def text(schedule: Schedule) -> str:
    """A line that names the segments."""
    form: Form = schedule.form
    tracks = " × ".join(_track_text(track) for track in form.tracks)
    notes = [] if form.scale == 1 else [f"scaled by {form.scale:g}"]
    notes += [] if form.low is None else [f"at least {form.low:g}"]
    notes += [] if form.high is None else [f"at most {form.high:g}"]
    notes += [f"clock of {len(form.clock)} knots"] if form.clock else []
    return f"Schedule({'; '.join([tracks, *notes])})"


def _track_text(track: Track) -> str:
    shown = [_segment_text(segment) for segment in track.segments[:4]]
    shown += [f"… {len(track.segments) - 4} more"] if len(track.segments) > 4 else []
    repeat = (
        "" if track.cycle is None else f", again every {track.cycle.period:g} × {track.cycle.multiplier:g}^i"
    )
    return ", ".join(shown) + repeat


def _segment_text(segment: Segment) -> str:
    match segment.shape:
        case Constant():
            what = f"{segment.a:g}"
        case Inner(form=form):
            what = text(Schedule(form))
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
