"""A recipe's schedule text, such as "cosine" or "wsd(decay=20%)": its grammar, kinds, and schedule in a plan.

A text is the name of a kind with its arguments in parentheses. An argument is a name and a value, or a value
alone for the first open argument (or for the one with any number of values). Nothing nests, and no value
holds a comma: splitting at commas is the whole grammar, and Python's own parser would not read 30ep. A text
is read when a recipe is made, before a plan knows the length of an epoch: lengths stay exact fractions with
their unit until `resolve`. The last 1,024 texts are cached, as texts repeat down the columns of a fleet. All
faults of a text are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from isobatch import _core
from isobatch.errors import InputError, missing, must_be, raise_all, unknown
from isobatch.schedules.form import Inner, Segment, Shape, curve, level, line
from isobatch.schedules.schedule import Schedule, choice, factor, lone, number, rate

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\)\s*)?", re.DOTALL)

# ---- lengths ----


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of a length's units in a plan.

    `tuned_batch` samples are one `st` of the recipe; `batch` samples one step of the plan; `steps_per_epoch`
    steps one `ep`, or where they are not known (as for a trainer without epochs), `dataset_size` samples;
    `seq_len` tokens one sample.
    """

    tuned_batch: int
    batch: int
    steps_per_epoch: float | None = None
    dataset_size: int | None = None
    seq_len: int | None = None


class Length(NamedTuple):
    """An exact number and its unit: st, ep, sp, tok or %."""

    value: Fraction
    unit: str

    @classmethod
    def read(cls, text: str) -> Length | None:
        """Reads a text such as "30ep" by the core's own parser; None where it is no length.

        >>> Length.read("28.43%")
        Length(value=Fraction(2843, 100), unit='%')
        """
        read = _core.length(text)
        return None if read is None else cls(Fraction(read[0], read[1]), read[2])

    def steps(self, units: Units, total_steps: float) -> int:
        """Converts it to optimizer steps of the plan: rounded half up, a share of the run floored."""
        if self.unit == "%":
            return int(self.value * Fraction(total_steps) / 100)
        if self.unit == "ep" and units.steps_per_epoch is not None:
            return int(self.value * Fraction(units.steps_per_epoch) + Fraction(1, 2))
        return int(self.samples(units) / units.batch + Fraction(1, 2))

    def samples(self, units: Units) -> Fraction:
        """Converts it to samples, a step to the tuned batch; a share of a run needs `steps` instead."""
        if self.unit == "ep":
            if units.dataset_size is None:
                raise missing("dataset_size", "the schedule has a length in ep")
            return self.value * units.dataset_size
        if self.unit == "tok":
            if units.seq_len is None:
                raise missing("seq_len", "the schedule has a length in tok")
            return self.value / units.seq_len
        return self.value * (units.tuned_batch if self.unit == "st" else 1)


# ---- kinds ----

LENGTH = "a length such as 30ep, 500st or 20%"
NUMBER = "a number of at least 0"
SIGNED = "a number"
WORD = "the name of a decay"

Constructor = TypeVar("Constructor", bound=Callable[..., Schedule])
Builder: TypeAlias = "Callable[[PlanRun], Sequence[Segment]]"


class Argument(NamedTuple):
    """An argument of a text: `LENGTH`, `NUMBER`, `SIGNED` or `WORD`; `many` takes any number of values."""

    reads: str
    required: bool = False
    many: bool = False


UNTIL = Argument(LENGTH)
"""The end of a decay before the run's (GPT-3: 260 of 300 billion tokens)."""


class Kind(NamedTuple):
    """A kind of schedule, as `kind` registers it.

    Attributes:
        constructor: makes it in steps.
        arguments: those of its text, in order.
        build: makes the segments of a plan from its text; None: it has no text.
        tail: the shape of a decay that other kinds may end with, under this kind's name.
    """

    name: str
    constructor: Callable[..., Schedule]
    arguments: Mapping[str, Argument]
    build: Builder | None
    tail: Shape | None


KINDS: dict[str, Kind] = {}
"""Every kind by its name; `isobatch.schedules.kinds` has them all."""


def kind(
    build: Builder | None = None, *, tail: Shape | None = None, **arguments: Argument
) -> Callable[[Constructor], Constructor]:
    """Registers a constructor as a kind; the first line of its docstring is its row in docs/schedules.md."""

    def register(constructor: Constructor) -> Constructor:
        name = constructor.__name__
        KINDS[name] = Kind(name, constructor, arguments, build, tail)
        return constructor

    return register


def tails() -> dict[str, Shape]:
    """Returns the shapes of decays by the names of their kinds."""
    return {name: kind.tail for name, kind in KINDS.items() if kind.tail is not None}


# ---- the grammar ----


class Spec(NamedTuple):
    """A schedule text, read: its kind, and its arguments as lengths, numbers, words or tuples of them."""

    kind: str
    arguments: Mapping[str, Any]


def check_spec(text: str) -> Spec:
    """Reads a schedule text such as "cosine", "wsd(decay=20%)" or "multistep(30ep, 60ep, gamma=0.1)".

    Args:
        text: a kind, and its arguments in parentheses; lengths have a unit (ep, st, sp, tok, %).

    Raises:
        InputError: naming the nearest kind, or every argument that is wrong and what the kind takes.

    >>> from isobatch.schedules import check_spec
    >>> check_spec("wsd(decay=20%)").kind
    'wsd'
    >>> check_spec("cosin")
    Traceback (most recent call last):
    isobatch.errors.InputError: unknown schedule 'cosin': did you mean 'cosine'?
    """
    if not isinstance(text, str):
        raise must_be('a text such as "cosine" or "wsd(decay=20%)"', text, field="schedule")
    return _read(text)


@lru_cache(maxsize=1024)
def _read(text: str) -> Spec:
    match = _CALL.fullmatch(text)
    if match is None:
        raise must_be('a name and its arguments, such as "wsd(decay=20%)"', text, field="schedule")
    kind = KINDS.get(match[1])
    if kind is None or kind.build is None:
        known = sorted(name for name, kind in KINDS.items() if kind.build is not None)
        raise unknown("schedule", match[1], known, field="schedule")
    values: dict[str, Any] = {}
    faults = []
    for part in (match[2] or "").split(",") if (match[2] or "").strip() else []:
        try:
            name, value = _argument(kind, part, values)
            if kind.arguments[name].many:
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        except InputError as error:
            faults.append(InputError(error.message, field="schedule"))
    faults += _missing(kind, values) if not faults else []
    raise_all(faults)
    return Spec(
        kind.name, {name: tuple(value) if type(value) is list else value for name, value in values.items()}
    )


def _argument(kind: Kind, part: str, before: dict[str, Any]) -> tuple[str, Any]:
    """Reads the name and the value of one argument."""
    name, equals, value = (piece.strip() for piece in part.rpartition("="))
    takes = kind.arguments
    if not takes:
        raise must_be(f"{kind.name} alone, which takes no arguments", part.strip(), field="schedule")
    if not equals:
        many = [known for known, argument in takes.items() if argument.many]
        name = next(iter([*many, *(known for known in takes if known not in before)]), "")
        if not name:
            raise must_be(f"{kind.name} with at most {len(takes)} arguments", part.strip(), field="schedule")
    if name not in takes:
        raise unknown(f"argument of {kind.name}", name, takes, field="schedule")
    if name in before and not takes[name].many:
        raise InputError(f"{name} is given twice to {kind.name}", field="schedule")
    return name, _value(f"{name} of {kind.name}", takes[name], value)


def _value(field: str, argument: Argument, text: str) -> Length | float | str:
    """Reads the value of an argument."""
    if argument.reads == WORD:
        return choice(field, text, sorted(tails()))
    if argument.reads == LENGTH:
        length = Length.read(text)
        if length is None or length.value == 0:
            raise must_be(argument.reads, text, field=field)
        return length
    try:
        value = float(text)
    except ValueError:
        raise must_be(argument.reads, text, field=field) from None
    return (number if argument.reads == SIGNED else rate)(field, value)


def _missing(kind: Kind, values: dict[str, Any]) -> Iterator[InputError]:
    for name, argument in kind.arguments.items():
        if argument.required and name not in values:
            error = missing(f"{name} of {kind.name}", f"give it {argument.reads}")
            yield InputError(error.message, field="schedule")


# ---- the schedule of a plan ----


class PlanRun(NamedTuple):
    """The run of a plan, as kinds build their segments for it; lengths are in its optimizer steps."""

    spec: Spec
    peak: float
    min_lr: float
    warmup: float
    total: float
    units: Units

    def number(self, name: str, default: float) -> float:
        """Returns a number of the text."""
        return cast(float, self.spec.arguments.get(name, default))

    def steps(self, name: str, default: float) -> float:
        """Returns a length of the text in steps, at least one."""
        length: Length | None = self.spec.arguments.get(name)
        return default if length is None else max(1, length.steps(self.units, self.total))

    def until(self) -> float:
        """Returns the end of a decay, from the start of the run: its end unless the text has `until`."""
        until = self.steps("until", self.total)
        if until <= self.warmup:
            raise InputError(
                f"until must be after the warmup of {self.warmup:,g} steps, got {until:,g}", field="schedule"
            )
        return until

    def fall(self, shape: Shape, b: float | None = None) -> list[Segment]:
        """Falls from the peak at the end of the warmup to b (the minimum) at the end of the decay."""
        return [self.tail(shape, self.until() - self.warmup, self.min_lr if b is None else b)]

    def tail(self, shape: Shape, over: float, b: float, *, beyond: bool = False) -> Segment:
        """Makes a curve from the peak, where the warmup ends."""
        return curve(shape, self.warmup, over, self.peak, b, beyond=beyond)

    def floored(self, segment: Segment) -> list[Segment]:
        """Keeps the segment at or above the plan's minimum."""
        if self.min_lr == 0:
            return [segment]
        form = lone(segment, low=self.min_lr).form
        return [Segment(start=segment.start, shape=Inner(form=form), beyond=True)]

    def drops(self, milestones: Sequence[int], gamma: float) -> list[Segment]:
        """Multiplies the peak by gamma at each milestone, counted from the start of the run."""
        points = sorted(milestones)  # as torch counts them, in whatever units they came
        values = [max(self.peak * gamma**count, self.min_lr) for count in range(1, len(points) + 1)]
        drops = [level(max(at, self.warmup), value) for at, value in zip(points, values, strict=True)]
        return [level(self.warmup, self.peak), *drops]


def resolve(
    spec: str | Schedule,
    *,
    peak: float,
    min_lr: float = 0.0,
    warmup_start: float = 0.0,
    warmup_steps: float = 0,
    total_steps: float,
    units: Units,
) -> Schedule:
    """Makes the schedule of a plan, in its optimizer steps.

    A straight line from warmup_start to peak over warmup_steps, then the kind that `spec` names, from peak to
    min_lr, ending at total_steps. Lengths in the text are converted by samples and rounded half up; `%` of
    the run is floored. Milestones, stairs and `until` are counted from the start of the run.

    A `Schedule` in place of a text is the whole schedule of the tuned run, in tuned steps: its highest value
    becomes peak, and its clock is stretched so that it has the same value after as many samples.

    Args:
        spec: a text (see `check_spec`) or a Schedule.
        peak: the highest learning rate.
        min_lr: the learning rate at the end.
        warmup_start: the learning rate at step 0 of the warmup.
        warmup_steps: optimizer steps of warmup, fractional where a batch ramp counts full batches; as long as
            the run or longer, the run is all warmup.
        total_steps: optimizer steps of the run.
        units: what st, sp, ep and tok are worth.

    Raises:
        InputError: when the text cannot be read, a unit cannot be converted, or a number is out of range.

    >>> from isobatch.schedules import Units, resolve
    >>> units = Units(tuned_batch=256, batch=512, steps_per_epoch=100)
    >>> s = resolve("multistep(3ep, 6ep)", peak=0.4, warmup_steps=100, total_steps=900, units=units)
    >>> s.values([0, 100, 299, 300, 600]).round(4).tolist()
    [0.0, 0.4, 0.4, 0.04, 0.004]
    >>> s = resolve("cosine(until=90%)", peak=0.4, min_lr=0.04, total_steps=1000, units=units)
    >>> s.values([0, 450, 900, 1000]).round(4).tolist()
    [0.4, 0.22, 0.04, 0.04]
    """
    top, bottom, first = rate("peak", peak), rate("min_lr", min_lr), rate("warmup_start", warmup_start)
    total, warmup = total_steps, warmup_steps
    factor("total_steps", total)
    rate("warmup_steps", warmup)
    if isinstance(spec, Schedule):
        schedule = spec.scaled(top / spec.peak) if spec.peak else spec
        ratio = units.batch / units.tuned_batch
        schedule = schedule if ratio == 1 else schedule.with_clock([(0, 0), (1, ratio)])
        return Schedule(msgspec.structs.replace(schedule.form, run=total))
    read = check_spec(spec)
    rise = [line(0.0, warmup, first, top)] if warmup else []
    build = KINDS[read.kind].build
    if warmup >= total or build is None:
        return lone(*rise, run=total)
    return lone(*rise, *build(PlanRun(read, top, bottom, warmup, total, units)), run=total)
