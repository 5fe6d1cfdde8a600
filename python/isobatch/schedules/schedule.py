"""A schedule: its form, which is data, over the core's evaluator, which is fast."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Self

import msgspec

from isobatch._core import Evaluator
from isobatch.errors import InputError
from isobatch.schedules import clock, extent, lint
from isobatch.schedules.arguments import number, rate
from isobatch.schedules.form import Cycle, Form, Segment, Track
from isobatch.schedules.lint import ScheduleReason

SCHEMA = 1


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    form: Form


class Schedule(Evaluator):
    """A learning rate at every optimizer step. Build one with the functions of `isobatch.schedules`.

    It is a value: frozen, hashable, picklable, equal to any schedule of the same form. `at(step)` is its value at one
    step, which may be fractional, and `values(steps)` a float64 array of the shape of `steps`.

    >>> import isobatch as ib
    >>> s = ib.schedules.cosine(0.5, 100)
    >>> s.at(50), s.values([0, 100]).tolist()
    (0.25, [0.5, 0.0])
    >>> s == ib.schedules.cosine(0.5, 100)
    True
    """

    __slots__ = ("form",)

    form: Form
    """What describes it."""

    def __new__(cls, form: Form) -> Self:
        """The schedule of a form.

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

    def __eq__(self, other: object) -> bool:
        return self.form == other.form if isinstance(other, Schedule) else NotImplemented

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
        """The step from which the schedule no longer changes, or None where there is none."""
        return extent.end(self.form)

    def check(self, total_steps: int | None = None) -> tuple[ScheduleReason, ...]:
        """What is odd about the schedule over a run of total_steps updates (by default: until its own end).

        Raises:
            InputError: when the run has no length: total_steps is 0, or missing where the schedule has no end.

        >>> import isobatch as ib
        >>> [str(r) for r in ib.schedules.warmup(ib.schedules.cosine(0.1, 90), 10).check(total_steps=50)]
        ['first_update_at_zero', 'ends_above_minimum']
        """
        return lint.check(self.form, self, total_steps)

    def scaled(self, factor: float) -> Schedule:
        """The same schedule, every value multiplied by `factor` (at least 0).

        >>> import isobatch as ib
        >>> ib.schedules.cosine(0.1, 100).scaled(2).at(50)
        0.1
        """
        scale = self.form.scale * rate("factor", factor)
        return Schedule(msgspec.structs.replace(self.form, scale=scale))

    def with_clock(self, points: Iterable[tuple[float, float]]) -> Schedule:
        """The same schedule read through a clock: at step x it has the value that it had at clock(x).

        The clock is piecewise linear through `points`, (step, schedule step) pairs that rise in both numbers, and
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
        outer = tuple((number("clock", step), number("clock", at)) for step, at in points)
        if not outer:
            raise InputError("must hold at least one (step, schedule step) pair, got none", field="clock")
        form = self.form
        # The core checks the points; composing needs them sound.
        checked = Schedule(msgspec.structs.replace(form, clock=outer, last=None))
        last = None if form.last is None else clock.step_of(outer, form.last)
        run = None if form.run is None else clock.step_of(outer, form.run)
        if form.clock:
            outer = clock.composed(outer, form.clock)
        return Schedule(msgspec.structs.replace(checked.form, clock=outer, last=last, run=run))

    def to_json(self) -> str:
        """The schedule as JSON text: its form and the schema version."""
        return msgspec.json.encode(_Document(schema=SCHEMA, form=self.form)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The schedule that `to_json` wrote.

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
            raise InputError(f"must be what `Schedule.to_json` wrote: {error}", field="json") from None
        if document.schema != SCHEMA:
            raise InputError(
                f"must be {SCHEMA}, got {document.schema}; a newer isobatch reads it", field="schema"
            )
        return cls(document.form)


def lone(*segments: Segment, cycle: Cycle | None = None, **rest: Any) -> Schedule:
    """The schedule of one track."""
    return Schedule(Form(tracks=(Track(segments=segments, cycle=cycle),), **rest))
