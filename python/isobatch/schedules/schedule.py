"""A schedule: its form as data, over the core's evaluator; and schedules made of schedules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import msgspec

from isobatch._core import Evaluator
from isobatch.errors import InputError, must_be
from isobatch.schedules import extent
from isobatch.schedules.form import STEP_LIMIT, Cycle, Form, Inner, Segment, Track, line

if TYPE_CHECKING:
    from isobatch.schedules.lint import ScheduleReason

SCHEMA = 1
_WHOLE = re.compile(r"(?<=\d)\.0(?=[],}])")
"""The `.0` of a float that is a whole number; no text in a schedule has a digit."""


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    form: Form


class Schedule(Evaluator):
    """A learning rate at every optimizer step. Build one with the functions of `isobatch.schedules`.

    It is a value: frozen, hashable, picklable, equal to any schedule of the same form. `at(step)` is its
    value at one step, which may be fractional, and `values(steps)` a float64 array of the shape of `steps`.

    >>> import isobatch as ib
    >>> s = ib.schedules.cosine(0.5, 100)
    >>> s.at(50), s.values([0, 100]).tolist()
    (0.25, [0.5, 0.0])
    >>> s == ib.schedules.cosine(0.5, 100)
    True
    """

    __slots__ = ("form",)

    form: Form
    """Its segments, clock and bounds, as data."""

    def __new__(cls, form: Form) -> Self:
        """Builds the schedule of a form.

        Raises:
            InputError: a field of the form is out of range.
        """
        schedule = super().__new__(cls, form)
        object.__setattr__(schedule, "form", form)
        return schedule

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Schedule cannot be changed: {name!r} is read-only")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Schedule cannot be changed: {name!r} is read-only")

    def __eq__(self, schedule: object) -> bool:
        return self.form == schedule.form if isinstance(schedule, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.form)

    def __reduce__(self) -> tuple[type[Self], tuple[Form]]:
        return type(self), (self.form,)

    def __repr__(self) -> str:
        return extent.text(self.form)

    @property
    def peak(self) -> float:
        """The highest value at the points where the schedule starts, turns or ends, and just before them.

        A warmup that a milestone cuts off jumps down from its height, which it never has at a step:

        >>> from isobatch.schedules import constant, join, linear
        >>> round(join([linear(0.0, 10, 0.1), constant(0.01)], [10]).peak, 9)
        0.1
        """
        knots = extent.knots(self.form)
        # A knot behind a clock is itself rounded.
        before = [x for knot in knots if knot > 0 for x in (math.nextafter(knot, 0.0), knot * (1 - 2.0**-40))]
        return max(self.at(x) for x in (*knots, *before))

    @property
    def end(self) -> float | None:
        """The first step after the schedule's last change, or None where there is none."""
        return extent.end(self.form)

    def check(self, total_steps: int | None = None) -> tuple[ScheduleReason, ...]:
        """Lists the oddities of the schedule over a run of total_steps updates, by default until its own end.

        Raises:
            InputError: when the run has no length: total_steps is 0, or missing where the schedule has no
                end.

        >>> import isobatch as ib
        >>> [str(r) for r in ib.schedules.warmup(ib.schedules.cosine(0.1, 90), 10).check(total_steps=50)]
        ['first_update_at_zero', 'ends_above_minimum']
        """
        from isobatch.schedules import lint

        return lint.check(self.form, self, total_steps)

    def scaled(self, factor: float) -> Schedule:
        """Returns the same schedule, every value multiplied by `factor` (at least 0).

        >>> import isobatch as ib
        >>> ib.schedules.cosine(0.1, 100).scaled(2).at(50)
        0.1
        """
        scale = self.form.scale * rate("factor", factor)
        return Schedule(msgspec.structs.replace(self.form, scale=scale))

    def with_clock(self, points: Iterable[tuple[float, float]]) -> Schedule:
        """Reads the same schedule through a clock: at step x it has the value of clock(x).

        The clock is piecewise linear through `points`, (step, schedule step) pairs that rise in both numbers,
        and goes on with the slope of its first and last piece; a single point is a shift. Clocks compose: a
        second one is read first.

        >>> import isobatch as ib
        >>> s = ib.schedules.linear(1.0, 100)
        >>> bent = s.with_clock([(0, 0), (50, 50), (51, 52)])      # from step 50 on, twice the batch
        >>> bent.at(50), bent.at(60), bent.at(75)
        (0.5, 0.30000000000000004, 0.0)

        Raises:
            InputError: when a number is not finite or the points do not rise.
        """
        outer = tuple((number("clock", step), number("clock", at)) for step, at in points)
        if not outer:
            raise InputError(
                "clock must have at least one (step, schedule step) pair, got none", field="clock"
            )
        form = self.form
        # The core checks the points; composing needs them sound.
        checked = Schedule(msgspec.structs.replace(form, clock=outer, last=None))
        last = None if form.last is None else extent.step_of(outer, form.last)
        run = None if form.run is None else extent.step_of(outer, form.run)
        if form.clock:
            outer = extent.composed(outer, form.clock)
        return Schedule(msgspec.structs.replace(checked.form, clock=outer, last=last, run=run))

    def to_json(self) -> str:
        """Writes the schedule as JSON text: its form and the schema version."""
        text = msgspec.json.encode(_Document(schema=SCHEMA, form=self.form)).decode()
        return _WHOLE.sub("", text)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads a schedule from the JSON of `to_json`.

        Raises:
            InputError: when the text is no such JSON, or of a schema that this version does not know.

        >>> import isobatch as ib
        >>> s = ib.schedules.linear(1.0, 4)
        >>> ib.schedules.Schedule.from_json(s.to_json()) == s
        True
        """
        try:
            document = msgspec.json.decode(text, type=_Document)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise InputError(f"json must be what `Schedule.to_json` wrote: {error}", field="json") from None
        if document.schema != SCHEMA:
            newer = f"must be {SCHEMA}, got {document.schema}; a newer isobatch reads it"
            raise InputError(newer, field="schema")
        return cls(document.form)


def lone(*segments: Segment, cycle: Cycle | None = None, **rest: Any) -> Schedule:
    """Makes the schedule of one track."""
    return Schedule(Form(tracks=(Track(segments=segments, cycle=cycle),), **rest))


# ---- schedules made of schedules ----


def join(schedules: Sequence[Schedule], boundaries: Sequence[float]) -> Schedule:
    """Plays one schedule after another, each restarted at 0 when its boundary is reached.

    Args:
        schedules: at least one schedule.
        boundaries: one step fewer than schedules; schedule i+1 plays from boundaries[i] on, as if that step
            were its step 0.

    Raises:
        InputError: when the counts do not match or the boundaries do not rise.

    >>> import isobatch as ib
    >>> s = ib.schedules.join([ib.schedules.constant(1.0), ib.schedules.linear(0.5, 10)], [4])
    >>> [s.at(x) for x in (3, 4, 9, 14)]
    [1.0, 0.5, 0.25, 0.0]
    """
    starts = [0.0, *rising("boundaries", boundaries, repeats=True)]
    if len(starts) != len(schedules):
        says = f"must be one fewer than the {len(schedules)} schedules, got {len(boundaries)}"
        raise InputError(says, field="boundaries")
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
    """Multiplies schedules, step by step: a learning rate times factors.

    Args:
        schedules: at least one; the learning rate, and factors.

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
    for form in (schedule.form for schedule in schedules):
        whole = Track(segments=(Segment(shape=Inner(form=form), beyond=True),))
        tracks.append(form.tracks[0] if _is_plain(form, cycle=True) else whole)
    ends = [s.form.last for s in schedules if s.form.last is not None]
    runs = [s.form.run for s in schedules if s.form.run is not None]
    return Schedule(Form(tracks=tuple(tracks), last=min(ends, default=None), run=max(runs, default=None)))


def warmup(schedule: Schedule, steps: float, start: float = 0.0) -> Schedule:
    """Puts a straight line from start to the schedule's first value over `steps` in front of the schedule.

    The first value is reached at x = steps. 0 steps leave the schedule as it is.

    Args:
        schedule: what follows; its step 0 is at x = steps.
        steps: optimizer steps of the warmup; 0 for none.
        start: the learning rate at step 0.

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
    """Returns whether the form is one track and nothing else, so its segments can be used as they are."""
    bare = Form(tracks=form.tracks[:1], last=form.last, run=form.run)
    return form == bare and (cycle or form.tracks[0].cycle is None)


def _moved(segment: Segment, by: float) -> Segment:
    return msgspec.structs.replace(segment, start=segment.start + by, origin=segment.origin + by)


# ---- the checks of arguments: each returns a number, or raises an InputError that names the argument ----


def number(field: str, value: object) -> float:
    """Reads `value` as a finite float."""
    # Most are floats, asked for first: an abstract class takes a microsecond to ask.
    if not isinstance(value, bool) and isinstance(value, (float, Real)) and math.isfinite(value):
        return float(value)
    raise must_be("a finite number", value, field=field)


def _number_where(is_legal: Callable[[float], bool], legal: str) -> Callable[[str, object], float]:
    def read(field: str, value: object) -> float:
        result = number(field, value)
        if not is_legal(result):
            raise must_be(legal, value, field=field)
        return result

    return read


rate = _number_where(lambda x: x >= 0, "at least 0")
"""Reads a value as a learning rate or share: a finite number of at least 0."""
factor = _number_where(lambda x: x > 0, "above 0")
"""Reads a value as a finite number above 0."""
length = _number_where(lambda x: 0 < x < STEP_LIMIT, "a number of steps above 0 and below 2^53")
"""Reads a value as a number of steps above 0."""
span = _number_where(lambda x: 0 <= x < STEP_LIMIT, "a number of steps from 0 to below 2^53")
"""Reads a value as a number of steps, 0 allowed."""


def rising(field: str, values: Iterable[object], *, repeats: bool = False) -> list[float]:
    """Reads rising step boundaries; `repeats` lets one be listed more than once."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)) or not getattr(values, "ndim", 1):
        raise must_be("a list of steps", values, field=field)
    result = [span(field, value) for value in values]
    for before, after in pairwise(result):
        if after < before or (after == before and not repeats):
            raise InputError(f"{field} must rise, got {after:g} after {before:g}", field=field)
    return result


def multiplied(base: float, gamma: float, count: int) -> float:
    """Computes base·gamma^count; an InputError where it overflows."""
    try:
        return base * gamma**count
    except OverflowError:
        raise must_be(f"a factor whose power of {count:,} is finite", gamma, field="gamma") from None


def choice(field: str, value: str, known: Iterable[str]) -> str:
    """Reads `value` as one of the names."""
    names = [*known]
    if value not in names:
        raise must_be(" or ".join(filter(None, (", ".join(names[:-1]), names[-1]))), value, field=field)
    return value
