"""What a kind of schedule is: a constructor in steps, and how a recipe's text makes one for a plan.

A kind is one file in `kinds/`, with a constructor under `@kind(...)`, and one line in `kinds/__init__.py`. The first
line of the constructor's docstring is its row in docs/schedules.md. Its oracle is in tests/reference/schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from isobatch.errors import InputError, unknown
from isobatch.schedules.arguments import length as checked_length
from isobatch.schedules.arguments import rate, rising
from isobatch.schedules.form import Inner, Segment, Shape
from isobatch.schedules.lengths import Length, Units
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import level

Constructor = TypeVar("Constructor", bound=Callable[..., Schedule])

LENGTH = "a length such as 30ep, 500st or 20%"
NUMBER = "a number of at least 0"
SIGNED = "a number"
WORD = "the name of a decay"


Builder: TypeAlias = "Callable[[Run], Sequence[Segment]]"


class Argument(NamedTuple):
    """What an argument of a text may be: `LENGTH`, `NUMBER`, `SIGNED` or `WORD`; `many` takes any number of values."""

    reads: str
    required: bool = False
    many: bool = False


class Kind(NamedTuple):
    """A kind: its constructor; the arguments that its text takes, in order, and what they build (None: it has no text).

    `tail` is the shape of a decay that other kinds may end with, under this kind's name.
    """

    name: str
    constructor: Callable[..., Schedule]
    arguments: Mapping[str, Argument]
    build: Builder | None
    tail: Shape | None


KINDS: dict[str, Kind] = {}
"""Every kind by its name: those whose files were imported."""


def kind(
    build: Builder | None = None, *, tail: Shape | None = None, **arguments: Argument
) -> Callable[[Constructor], Constructor]:
    """Registers a constructor as a kind."""

    def register(constructor: Constructor) -> Constructor:
        name = constructor.__name__
        KINDS[name] = Kind(name, constructor, arguments, build, tail)
        return constructor

    return register


def builder(name: str) -> Builder:
    """What the text of a kind builds.

    Raises:
        InputError: naming the nearest kind that has a text.
    """
    kind = KINDS.get(name)
    if kind is None or kind.build is None:
        known = [name for name, kind in KINDS.items() if kind.build is not None]
        raise unknown("schedule", name, known, field="schedule")
    return kind.build


def tails() -> dict[str, Shape]:
    """The shapes that a decay may have, by the names of their kinds."""
    return {name: kind.tail for name, kind in KINDS.items() if kind.tail is not None}


def falling(lr: float, steps: float, end: float, shape: Shape) -> Schedule:
    """From lr to end over `steps`, then end."""
    a, b, over = rate("lr", lr), rate("end", end), checked_length("steps", steps)
    return lone(Segment(length=over, a=a, b=b, shape=shape))


class Spec(NamedTuple):
    """A schedule text, read: its kind, and its arguments as lengths, numbers, words or tuples of them."""

    kind: str
    arguments: Mapping[str, Any]


class Run(NamedTuple):
    """The run of a plan that a kind is built for; lengths are in its optimizer steps."""

    spec: Spec
    peak: float
    min_lr: float
    warmup: float
    total: float
    units: Units

    def number(self, name: str, default: float) -> float:
        """A number of the text."""
        return cast(float, self.spec.arguments.get(name, default))

    def word(self, name: str, default: str) -> str:
        """A word of the text."""
        return cast(str, self.spec.arguments.get(name, default))

    def steps(self, name: str, default: float) -> float:
        """A length of the text in steps; one that is given is at least one."""
        length: Length | None = self.spec.arguments.get(name)
        return default if length is None else max(1, length.steps(self.units, self.total))

    def until(self) -> float:
        """Where a decay ends, counted from the start of the run: at its end unless the text has `until`."""
        until = self.steps("until", self.total)
        if until <= self.warmup:
            raise InputError(
                f"until must be after the warmup of {self.warmup:,g} steps, got {until:,g}", field="schedule"
            )
        return until

    def fall(self, shape: Shape, b: float | None = None) -> list[Segment]:
        """From the peak at the end of the warmup to b (the minimum) at the end of the decay."""
        return [self.tail(shape, self.until() - self.warmup, self.min_lr if b is None else b)]

    def tail(self, shape: Shape, over: float, b: float, *, beyond: bool = False) -> Segment:
        """A curve that starts where the warmup ends."""
        start = self.warmup
        return Segment(start=start, origin=start, length=over, a=self.peak, b=b, shape=shape, beyond=beyond)

    def floored(self, segment: Segment) -> list[Segment]:
        """The segment, no lower than the plan's minimum."""
        if self.min_lr == 0:
            return [segment]
        form = lone(segment, low=self.min_lr).form
        return [Segment(start=segment.start, shape=Inner(form=form), beyond=True)]

    def drops(self, milestones: Sequence[int], gamma: float) -> list[Segment]:
        """The peak, times gamma at each milestone, which are counted from the start of the run."""
        points = rising("schedule", milestones, repeats=True)
        values = [max(self.peak * gamma**count, self.min_lr) for count in range(1, len(points) + 1)]
        drops = [level(max(at, self.warmup), value) for at, value in zip(points, values, strict=True)]
        return [level(self.warmup, self.peak), *drops]


UNTIL = Argument(LENGTH)
"""The end of a decay that is over before the run is (BLOOM: 200 of 220 million samples, GPT-3: 260 of 300 billion tokens)."""
