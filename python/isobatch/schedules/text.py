"""From a recipe's schedule text to the schedule of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import msgspec

from isobatch._core import Schedule
from isobatch.errors import InputError
from isobatch.schedules.form import (
    Cosine,
    Cycle,
    Exponential,
    Inner,
    Power,
    Reciprocal,
    Rex,
    Segment,
    Shape,
    Tanh,
    level,
    line,
    lone,
    number,
    rate,
    rising,
)
from isobatch.schedules.kinds import DECAYS

# What one argument of a text may be.
LENGTH, NUMBER, WORD = "a length such as 30ep, 500st or 20%", "a number", "a word"

# The arguments of each kind, in order: name → what it is. One that ends in * takes any number of values.
KINDS: dict[str, dict[str, str]] = {
    "constant": {},
    "linear": {},
    "linear_to_zero": {},
    "cosine": {},
    "polynomial": {"power": NUMBER},
    "exponential": {"gamma": NUMBER, "every": LENGTH},
    "inverse_sqrt": {"timescale": LENGTH},
    "step": {"every": LENGTH, "gamma": NUMBER},
    "multistep": {"milestones*": LENGTH, "gamma": NUMBER},
    "wsd": {"decay": LENGTH, "shape": WORD},
    "trapezoid": {"decay": LENGTH},
    "one_cycle": {"rise": LENGTH},
    "cosine_restarts": {"period": LENGTH, "multiplier": NUMBER, "decay": NUMBER},
    "one_minus_sqrt": {},
    "rex": {},
    "tanh": {"lower": NUMBER, "upper": NUMBER},
    "goyal": {},
    "vaswani": {},
}
_REQUIRED = {"step": "every", "multistep": "milestones", "cosine_restarts": "period"}

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\)\s*)?", re.DOTALL)
_LENGTH = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(st|ep|sp|tok|%)")


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """What the units of a length are worth in a plan.

    `tuned_batch` samples are one `st` of the recipe; `batch` samples one step of the plan; `steps_per_epoch` steps
    one `ep`; `seq_len` tokens one sample.
    """

    tuned_batch: int
    batch: int
    steps_per_epoch: float | None = None
    seq_len: int | None = None


class Length(NamedTuple):
    """An exact number and its unit."""

    value: Fraction
    unit: str

    def steps(self, units: Units, total_steps: float) -> int:
        """Optimizer steps of the plan: rounded half up, a share of the run floored."""
        if self.unit == "%":
            return int(self.value * Fraction(total_steps) / 100)
        if self.unit == "ep":
            if units.steps_per_epoch is None:
                raise InputError("a length in ep needs the dataset's size", field="schedule")
            exact = self.value * Fraction(units.steps_per_epoch)
        else:
            samples = self.value
            if self.unit == "st":
                samples *= units.tuned_batch
            elif self.unit == "tok":
                if units.seq_len is None:
                    raise InputError("a length in tok needs seq_len", field="schedule")
                samples /= units.seq_len
            exact = samples / units.batch
        return int(exact + Fraction(1, 2))


class Spec(NamedTuple):
    """A schedule text, read."""

    kind: str
    numbers: dict[str, float]
    lengths: dict[str, Length]
    milestones: tuple[Length, ...]
    words: dict[str, str]


@lru_cache(maxsize=1024)
def check_spec(text: str) -> Spec:
    """Reads a schedule text such as "cosine", "wsd(decay=20%)" or "multistep(30ep, 60ep, gamma=0.1)".

    Raises:
        InputError: naming the legal kinds, or the arguments that the kind takes.

    >>> from isobatch.schedules import check_spec
    >>> check_spec("wsd(decay=20%)").kind
    'wsd'
    """
    match = _CALL.fullmatch(text)
    if match is None or match[1] not in KINDS:
        raise InputError(f"{text!r} is no schedule; the kinds are {', '.join(KINDS)}", field="schedule")
    kind, arguments = match[1], match[2]
    takes = {name.rstrip("*"): what for name, what in KINDS[kind].items()}
    many = [name.rstrip("*") for name in KINDS[kind] if name.endswith("*")]
    free = list(takes)
    spec = Spec(kind, {}, {}, (), {})
    milestones: list[Length] = []
    given: set[str] = set()
    for part in (arguments or "").split(",") if (arguments or "").strip() else []:
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        if not equals:
            name = many[0] if many else next((n for n in free if n not in given), "")
        if name not in takes:
            legal = ", ".join(takes) if takes else "no arguments"
            raise InputError(f"{kind} does not take {part.strip()!r}; it takes {legal}", field="schedule")
        if name in given and name not in many:
            raise InputError(f"{kind} is given {name} twice", field="schedule")
        given.add(name)
        read = _read(kind, name, takes[name], value)
        if isinstance(read, Length):
            if name in many:
                milestones.append(read)
            else:
                spec.lengths[name] = read
        elif isinstance(read, float):
            spec.numbers[name] = read
        else:
            spec.words[name] = read
    if (missing := _REQUIRED.get(kind)) is not None and missing not in given:
        raise InputError(f"{kind} needs {missing}, {takes[missing]}", field="schedule")
    return spec._replace(milestones=tuple(milestones))


def _read(kind: str, name: str, what: str, value: str) -> Length | float | str:
    wrong = InputError(f"{kind}: {name} must be {what}, not {value!r}", field="schedule")
    if what == WORD:
        if value not in DECAYS:
            raise InputError(f"{kind}: {name} is one of {', '.join(DECAYS)}, not {value!r}", field="schedule")
        return value
    if what == NUMBER:
        try:
            return rate(name, float(value)) if name not in ("lower", "upper") else number(name, float(value))
        except ValueError:
            raise wrong from None
    match = _LENGTH.fullmatch(value)
    if match is None:
        raise wrong
    length = Length(Fraction(match[1]), match[2])
    if length.value <= 0:
        raise wrong
    return length


class _Run(NamedTuple):
    """What a kind is built from: the run of a plan."""

    spec: Spec
    peak: float
    min_lr: float
    warmup: float
    total: float
    units: Units

    def steps(self, name: str, default: float) -> float:
        """A length in steps, one that is given at least one."""
        length = self.spec.lengths.get(name)
        return default if length is None else max(1, length.steps(self.units, self.total))

    @property
    def decay_steps(self) -> float:
        return self.total - self.warmup

    def tail(self, shape: Shape, over: float, b: float, *, beyond: bool = False) -> Segment:
        """A decay that starts where the warmup ends."""
        return Segment(
            start=self.warmup, origin=self.warmup, length=over, a=self.peak, b=b, shape=shape, beyond=beyond
        )


def _fall(shape: Callable[[_Run], Shape]) -> Callable[[_Run], list[Segment]]:
    """From the peak at the end of the warmup to the minimum at the end of the run."""
    return lambda run: [run.tail(shape(run), run.decay_steps, run.min_lr)]


def _exponential(run: _Run) -> list[Segment]:
    gamma = run.spec.numbers.get("gamma")
    if gamma is None:
        if not 0 < run.min_lr < run.peak:
            raise InputError("exponential needs gamma, or a min_lr above 0 to end at", field="schedule")
        return [run.tail(Exponential(rate=run.min_lr / run.peak), run.decay_steps, 0.0)]
    every = run.steps("every", 1)
    return _floored(run, run.tail(Exponential(rate=gamma), every, 0.0, beyond=True))


def _floored(run: _Run, segment: Segment) -> list[Segment]:
    """The segment, no lower than the plan's minimum."""
    if run.min_lr == 0:
        return [segment]
    form = lone(segment, low=run.min_lr).form
    return [Segment(start=segment.start, shape=Inner(form=form), beyond=True)]


def _inverse_sqrt(run: _Run) -> list[Segment]:
    timescale = run.steps("timescale", run.warmup or 10_000)
    return _floored(run, run.tail(Reciprocal(), timescale, 0.0, beyond=True))


def _vaswani(run: _Run) -> list[Segment]:
    if run.warmup == 0:
        raise InputError("vaswani is defined by its warmup: the recipe needs one", field="warmup")
    return _inverse_sqrt(run)


def _step(run: _Run) -> list[Segment]:
    shape = Exponential(rate=run.spec.numbers.get("gamma", 0.1), stairs=True)
    # Stairs are counted from the start of the run, the warmup included, as published recipes count them.
    stairs = Segment(start=run.warmup, length=run.steps("every", 1), a=run.peak, shape=shape, beyond=True)
    return _floored(run, stairs)


def _drops(run: _Run, milestones: list[int]) -> list[Segment]:
    gamma = run.spec.numbers.get("gamma", 0.1)
    points = rising("schedule", milestones, repeats=True)
    values = [max(run.peak * gamma**count, run.min_lr) for count in range(1, len(points) + 1)]
    drops = [level(max(at, run.warmup), value) for at, value in zip(points, values, strict=True)]
    return [level(run.warmup, run.peak), *drops]


def _multistep(run: _Run) -> list[Segment]:
    return _drops(run, [milestone.steps(run.units, run.total) for milestone in run.spec.milestones])


def _goyal(run: _Run) -> list[Segment]:
    return _drops(run, [Length(Fraction(ep), "ep").steps(run.units, run.total) for ep in (30, 60, 80)])


def _wsd(run: _Run) -> list[Segment]:
    over = run.steps("decay", max(1, run.total // 5))
    if over > run.decay_steps:
        raise InputError(
            f"a decay of {over} steps does not fit: {run.decay_steps} are left after the warmup",
            field="schedule",
        )
    at = run.total - over
    shape = DECAYS[run.spec.words.get("shape", "linear")]
    decay = Segment(start=at, origin=at, length=over, a=run.peak, b=run.min_lr, shape=shape)
    return [level(run.warmup, run.peak), decay]


def _one_cycle(run: _Run) -> list[Segment]:
    if run.warmup:
        return [run.tail(Cosine(), run.decay_steps, run.min_lr)]
    up = run.steps("rise", max(1, run.total * 3 // 10))
    if up >= run.total:
        raise InputError(f"a rise of {up} steps leaves nothing of {run.total}", field="schedule")
    return [
        Segment(length=up, a=run.peak / 25, b=run.peak, shape=Cosine()),
        Segment(start=up, origin=up, length=run.total - up, a=run.peak, b=run.min_lr, shape=Cosine()),
    ]


def _cosine_restarts(run: _Run) -> list[Segment]:
    numbers = run.spec.numbers
    period = run.steps("period", 1)
    cycle = Cycle(
        period=period, multiplier=numbers.get("multiplier", 1.0), peak_decay=numbers.get("decay", 1.0)
    )
    wave = Segment(length=period, a=run.peak, b=run.min_lr, shape=Cosine())
    inner = Inner(form=lone(wave, cycle=cycle).form)
    return [Segment(start=run.warmup, origin=run.warmup, shape=inner, beyond=True)]


_BUILD: dict[str, Callable[[_Run], list[Segment]]] = {
    "constant": lambda run: [level(run.warmup, run.peak)],
    "linear": _fall(lambda run: Power()),
    "linear_to_zero": lambda run: [run.tail(Power(), run.decay_steps, 0.0)],
    "cosine": _fall(lambda run: Cosine()),
    "polynomial": _fall(lambda run: Power(exponent=run.spec.numbers.get("power", 1.0))),
    "exponential": _exponential,
    "inverse_sqrt": _inverse_sqrt,
    "step": _step,
    "multistep": _multistep,
    "wsd": _wsd,
    "trapezoid": _wsd,
    "one_cycle": _one_cycle,
    "cosine_restarts": _cosine_restarts,
    "one_minus_sqrt": _fall(lambda run: Power(stretch=0.5)),
    "rex": _fall(lambda run: Rex()),
    "tanh": _fall(
        lambda run: Tanh(lower=run.spec.numbers.get("lower", -6.0), upper=run.spec.numbers.get("upper", 3.0))
    ),
    "goyal": _goyal,
    "vaswani": _vaswani,
}


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
    """The schedule of a plan, in its optimizer steps.

    A straight line from warmup_start to peak over warmup_steps, then the kind that `spec` names, from peak to
    min_lr, ending at total_steps. Lengths in the text are converted by samples and rounded half up; `%` of the run
    is floored. Milestones and stairs are counted from the start of the run.

    A `Schedule` in place of a text is the whole schedule of the tuned run, in tuned steps: its highest value
    becomes peak, and its clock is stretched so that it holds the samples.

    Args:
        spec: a text (see `check_spec`) or a Schedule.
        peak: the highest learning rate.
        min_lr: the learning rate at the end.
        warmup_start: the learning rate at step 0 of the warmup.
        warmup_steps: optimizer steps of warmup, fractional where a batch ramp counts full batches; as long as the run or longer, the run is all warmup.
        total_steps: optimizer steps of the run.
        units: what st, sp, ep and tok are worth.

    Raises:
        InputError: when the text is not legal, a unit cannot be converted, or a number is out of range.

    >>> from isobatch.schedules import Units, resolve
    >>> units = Units(tuned_batch=256, batch=512, steps_per_epoch=100)
    >>> s = resolve("multistep(3ep, 6ep)", peak=0.4, warmup_steps=100, total_steps=900, units=units)
    >>> s.values([0, 100, 299, 300, 600]).round(4).tolist()
    [0.0, 0.4, 0.4, 0.04, 0.004]
    """
    top, bottom, first = rate("peak", peak), rate("min_lr", min_lr), rate("warmup_start", warmup_start)
    if total_steps <= 0 or warmup_steps < 0:
        raise InputError(f"{total_steps} steps with {warmup_steps} of warmup are no run", field="total_steps")
    if isinstance(spec, Schedule):
        shape = spec.scaled(top / spec.peak) if spec.peak else spec
        ratio = units.batch / units.tuned_batch
        return shape if ratio == 1 else shape.with_clock([(0, 0), (1, ratio)])
    run = _Run(check_spec(spec), top, bottom, warmup_steps, total_steps, units)
    rise = [line(0.0, warmup_steps, first, top)] if warmup_steps else []
    if warmup_steps >= total_steps:
        return lone(*rise)
    return lone(*rise, *_BUILD[run.spec.kind](run))
