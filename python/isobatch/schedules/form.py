"""The one form of every schedule: the only declaration of Rust's input and of the JSON.

The core reads these structs by the names of their fields (`rust/core/src/schedule/`, each part in its own
file), so that a field or a shape is added here and there, and nowhere between.

Schedule = clock, tracks, combine: floor + (A(x) − floor)·B(x)·…, clip to low … high, scale
Track    = segments, and maybe a cycle
Segment  = from start on: b + (a − b)·shape(u), u = (x − origin)/length, clamped at 1 unless `beyond`
"""

from __future__ import annotations

import msgspec

STEP_LIMIT = 2.0**53
"""The first step that a float64 cannot count to exactly."""


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class _Shape(_Value, frozen=True, kw_only=True, tag_field="kind"):
    @property
    def kind(self) -> str:
        """The name of the shape, in JSON and in the core."""
        return str(self.__struct_config__.tag)


class Flat(_Shape, frozen=True, kw_only=True, tag="constant"):
    """1 throughout."""


class Power(_Shape, frozen=True, kw_only=True, tag="power"):
    """(1 − u^stretch)^exponent."""

    stretch: float = 1.0
    exponent: float = 1.0


class Cosine(_Shape, frozen=True, kw_only=True, tag="cosine"):
    """((1 + cos π·v)/2)^exponent with v = waves·u^stretch, or its fraction where `wrap`."""

    waves: float = 1.0
    stretch: float = 1.0
    exponent: float = 1.0
    wrap: bool = False


class Exponential(_Shape, frozen=True, kw_only=True, tag="exponential"):
    """rate^u, or rate^⌊u⌋ where `stairs`."""

    rate: float
    stairs: bool = False


class Reciprocal(_Shape, frozen=True, kw_only=True, tag="reciprocal"):
    """(1 + u)^−exponent."""

    exponent: float = 0.5


class Rex(_Shape, frozen=True, kw_only=True, tag="rex"):
    """(1 − u)/(1 − u/2)."""


class Tanh(_Shape, frozen=True, kw_only=True, tag="tanh"):
    """(1 − tanh(lower·(1 − u) + upper·u))/2."""

    lower: float
    upper: float


class Table(_Shape, frozen=True, kw_only=True, tag="table"):
    """values[u], straight lines between, the last one held."""

    values: tuple[float, ...]


class Inner(_Shape, frozen=True, kw_only=True, tag="inner"):
    """Another schedule, read at u."""

    form: Form


Shape = Flat | Power | Cosine | Exponential | Reciprocal | Rex | Tanh | Table | Inner


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
    """Segments in the order of their starts, and maybe a cycle to repeat them."""

    segments: tuple[Segment, ...]
    cycle: Cycle | None = None


class Form(_Value, frozen=True, kw_only=True):
    """A whole schedule. `clock` holds (step, schedule step) knots; `last` is the last step that has a value.

    `run` is the length of the run that the schedule was made for, where it is known: no value depends on it.
    """

    tracks: tuple[Track, ...]
    clock: tuple[tuple[float, float], ...] = ()
    floor: float = 0.0
    low: float | None = None
    high: float | None = None
    scale: float = 1.0
    last: float | None = None
    run: float | None = None


def level(start: float, value: float, *, after: bool = False) -> Segment:
    """Makes a constant from `start` on."""
    return Segment(start=start, after=after, a=value, shape=Flat())


def curve(
    shape: Shape, start: float, steps: float, a: float, b: float = 0.0, *, beyond: bool = False
) -> Segment:
    """Makes a curve from a at `start` to b after `steps`."""
    return Segment(start=start, origin=start, length=steps, a=a, b=b, shape=shape, beyond=beyond)


def line(start: float, steps: float, a: float, b: float) -> Segment:
    """Makes a straight line from a to b, then b; a constant where the two are equal."""
    return level(start, a) if a == b else curve(Power(), start, steps, a, b)
