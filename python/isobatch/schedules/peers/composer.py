"""MosaicML Composer's schedulers, by their own names and arguments.

A scheduler there is a multiplier of the optimizer's learning rate; `lr` (1 by default) is what it multiplies. Times
are texts in ep, ba, sp, tok and dur. `max_duration` is the trainer's; `batches_per_epoch` its dataloader's length,
needed for ep; `samples_per_batch` and `tokens_per_batch` are needed for sp and tok. x is the batch = optimizer step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Required, TypedDict, Unpack

from isobatch.errors import InputError, missing, must_be
from isobatch.schedules.arguments import length, number, rate
from isobatch.schedules.form import Cosine, Cycle, Exponential, Inner, Power, Segment, Shape, level, line
from isobatch.schedules.schedule import Schedule, lone

MAX_CYCLES = 30_000

_TIME = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*(ep|ba|sp|tok|dur)\s*")


class Trainer(TypedDict, total=False):
    """The arguments of every scheduler beside its own."""

    max_duration: Required[str]
    batches_per_epoch: int | None
    samples_per_batch: int | None
    tokens_per_batch: int | None
    lr: float


class _Training:
    """The optimizer's rate, and the conversion of Composer's times into batches."""

    def __init__(
        self,
        *,
        max_duration: str,
        batches_per_epoch: int | None = None,
        samples_per_batch: int | None = None,
        tokens_per_batch: int | None = None,
        lr: float = 1.0,
    ) -> None:
        self.lr = rate("lr", lr)
        self.per_epoch = batches_per_epoch
        self.per_batch = {"ba": 1, "sp": samples_per_batch, "tok": tokens_per_batch}
        self.duration, self.unit = self._read("max_duration", max_duration)
        if self.unit == "dur":
            raise must_be("a time in ep, ba, sp or tok", max_duration, field="max_duration")

    def share(self, field: str, alpha: float) -> float:
        """A multiple of the optimizer's rate."""
        return self.lr * rate(field, alpha)

    def _read(self, field: str, time: str) -> tuple[float, str]:
        match = _TIME.fullmatch(str(time))
        if match is None:
            raise must_be("a time such as 10ep, 500ba, 1e6sp, 1e9tok or 0.5dur", time, field=field)
        value, unit = float(match[1]), match[2]
        if unit != "dur" and value != int(value):
            raise must_be(f"a whole number of {unit}", time, field=field)
        return value, unit

    def time(self, field: str, time: str) -> tuple[int, str]:
        """A time in ba, sp or tok, cut to a whole number as Composer does."""
        value, unit = self._read(field, time)
        if unit == "dur":
            value, unit = value * self.duration, self.unit
        if unit == "ep":
            if self.per_epoch is None:
                raise missing("batches_per_epoch", f"{field} is in ep")
            value, unit = value * self.per_epoch, "ba"
        return int(value), unit

    def rate(self, field: str, unit: str) -> int:
        """Returns the worth of one batch in a unit."""
        worth = self.per_batch[unit]
        if worth is None:
            raise missing(f"{'samples' if unit == 'sp' else 'tokens'}_per_batch", f"{field} is in {unit}")
        return int(length(field, worth))

    def clocked(self, schedule: Schedule, field: str, unit: str) -> Schedule:
        """A schedule in `unit`, read in batches."""
        worth = self.rate(field, unit)
        return schedule if worth == 1 else schedule.with_clock([(0, 0), (1, worth)])

    def batch(self, field: str, time: str) -> int:
        """The first batch at or past a time."""
        value, unit = self.time(field, time)
        return -(-value // self.rate(field, unit))

    def drops(self, start: int, milestones: Sequence[str], gamma: float) -> list[Segment]:
        """From a batch on, lr·gamma^(milestones reached)."""
        factor = rate("gamma", gamma)
        points = sorted(self.batch("milestones", milestone) for milestone in milestones)
        levels = [level(max(at, start), self.lr * factor**count) for count, at in enumerate(points, start=1)]
        return [level(start, self.lr), *levels]

    def fall(self, shape: Shape, t_max: str, a: float, b: float) -> Schedule:
        """From a to b over t_max."""
        value, unit = self.time("t_max", t_max)
        return self.clocked(
            lone(Segment(length=length("t_max", value), a=a, b=b, shape=shape)), "t_max", unit
        )

    def warmed(self, shape: Shape, t_warmup: str, t_max: str, a: float, b: float) -> Schedule:
        """A straight line from 0 to a over t_warmup, then from a to b at t_max."""
        warm, unit = self.time("t_warmup", t_warmup)
        total, other = self.time("t_max", t_max)
        if unit != other:
            raise must_be(f"in the unit of t_max ({t_max})", t_warmup, field="t_warmup")
        run, whole = self.time("max_duration", "1dur")
        if whole == other and total < run:
            raise must_be("at least max_duration", t_max, field="t_max")
        rise = [line(0.0, warm, 0.0, a)] if warm else []
        rest = level(warm, a)
        if total > warm and a != b:
            rest = Segment(start=warm, origin=warm, length=total - warm, a=a, b=b, shape=shape)
        return self.clocked(lone(*rise, rest), "t_warmup", unit)


def StepScheduler(step_size: str, gamma: float = 0.1, **trainer: Unpack[Trainer]) -> Schedule:
    """lr·gamma^⌊time/step_size⌋.

    >>> StepScheduler("2ep", 0.5, max_duration="6ep", batches_per_epoch=10).values([19, 20, 40]).tolist()
    [1.0, 0.5, 0.25]
    """
    run = _Training(**trainer)
    value, unit = run.time("step_size", step_size)
    shape = Exponential(rate=length("gamma", gamma), stairs=True)
    stairs = Segment(length=length("step_size", value), a=run.lr, shape=shape, beyond=True)
    return run.clocked(lone(stairs), "step_size", unit)


def MultiStepScheduler(milestones: Sequence[str], gamma: float = 0.1, **trainer: Unpack[Trainer]) -> Schedule:
    """lr·gamma^(milestones reached); milestones may differ in unit.

    >>> MultiStepScheduler(["2ep", "30ba"], 0.5, max_duration="6ep", batches_per_epoch=10).values([20, 30]).tolist()
    [0.5, 0.25]
    """
    run = _Training(**trainer)
    return lone(*run.drops(0, milestones, gamma))


def ConstantScheduler(alpha: float = 1.0, t_max: str = "1dur", **trainer: Unpack[Trainer]) -> Schedule:
    """lr·alpha before t_max, lr from there on, as Composer has it.

    >>> ConstantScheduler(0.5, "10ba", max_duration="20ba").values([9, 10]).tolist()
    [0.5, 1.0]
    """
    run = _Training(**trainer)
    return lone(level(0.0, run.share("alpha", alpha)), level(run.batch("t_max", t_max), run.lr))


def LinearScheduler(
    alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: str = "1dur", **trainer: Unpack[Trainer]
) -> Schedule:
    """lr·(alpha_i + (alpha_f − alpha_i)·min(1, time/t_max)).

    >>> LinearScheduler(max_duration="10ba").at(4)
    0.6
    """
    run = _Training(**trainer)
    return run.fall(Power(), t_max, run.share("alpha_i", alpha_i), run.share("alpha_f", alpha_f))


def ExponentialScheduler(gamma: float, decay_period: str = "1ep", **trainer: Unpack[Trainer]) -> Schedule:
    """lr·gamma^(time/decay_period).

    >>> ExponentialScheduler(0.25, "10ba", max_duration="1ep").at(5)
    0.5
    """
    run = _Training(**trainer)
    value, unit = run.time("decay_period", decay_period)
    over = length("decay_period", value)
    curve = Segment(length=over, a=run.lr, shape=Exponential(rate=length("gamma", gamma)), beyond=True)
    return run.clocked(lone(curve), "decay_period", unit)


def CosineAnnealingScheduler(
    t_max: str = "1dur", alpha_f: float = 0.0, **trainer: Unpack[Trainer]
) -> Schedule:
    """lr·(alpha_f + (1 − alpha_f)·(1 + cos(π·min(1, time/t_max)))/2).

    >>> CosineAnnealingScheduler(max_duration="10ba").at(5)
    0.5
    """
    run = _Training(**trainer)
    return run.fall(Cosine(), t_max, run.lr, run.share("alpha_f", alpha_f))


def CosineAnnealingWarmRestartsScheduler(
    t_0: str, t_mult: float = 1.0, alpha_f: float = 0.0, **trainer: Unpack[Trainer]
) -> Schedule:
    """Cosines from lr to lr·alpha_f, the first over t_0, each next int(t_mult·the last) long.

    >>> s = CosineAnnealingWarmRestartsScheduler("10ba", 1.5, max_duration="60ba")
    >>> s.values([0, 10, 25, 47]).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    run = _Training(**trainer)
    over, unit = run.time("t_0", t_0)
    whole = math.ceil(run.duration * (run.per_epoch or 1) * run.rate("t_0", unit))
    growth, bottom, start = number("t_mult", t_mult), run.share("alpha_f", alpha_f), 0
    segments: list[Segment] = []
    while True:
        if over < 1:
            raise InputError(
                f"t_mult must leave every cycle at least one step, got {growth:g}", field="t_mult"
            )
        if len(segments) >= MAX_CYCLES:
            raise InputError(
                f"t_0 and t_mult must give at most {MAX_CYCLES:,} cycles in the run", field="t_0"
            )
        wave = Segment(start=start, origin=start, length=over, a=run.lr, b=bottom, shape=Cosine())
        if int(growth * over) == over or start > whole:
            # From here on the cycles are equal.
            rest = lone(Segment(length=over, a=run.lr, b=bottom, shape=Cosine()), cycle=Cycle(period=over))
            segments.append(Segment(start=start, origin=start, shape=Inner(form=rest.form), beyond=True))
            return run.clocked(lone(*segments), "t_0", unit)
        segments.append(wave)
        start, over = start + over, int(growth * over)


def PolynomialScheduler(
    power: float, t_max: str = "1dur", alpha_f: float = 0.0, **trainer: Unpack[Trainer]
) -> Schedule:
    """lr·(alpha_f + (1 − alpha_f)·(1 − min(1, time/t_max))^power).

    >>> PolynomialScheduler(2.0, max_duration="10ba").at(5)
    0.25
    """
    run = _Training(**trainer)
    shape = Power(exponent=number("power", power))
    return run.fall(shape, t_max, run.lr, run.share("alpha_f", alpha_f))


def MultiStepWithWarmupScheduler(
    t_warmup: str, milestones: Sequence[str], gamma: float = 0.1, **trainer: Unpack[Trainer]
) -> Schedule:
    """A straight line from 0 to lr over t_warmup, then lr·gamma^(milestones reached).

    >>> s = MultiStepWithWarmupScheduler("10ba", ["30ba"], 0.5, max_duration="60ba")
    >>> s.values([5, 10, 30]).tolist()
    [0.5, 1.0, 0.5]
    """
    run = _Training(**trainer)
    warm, unit = run.time("t_warmup", t_warmup)
    # The line is in the warmup's own unit; the milestones may be in others.
    worth = run.rate("t_warmup", unit)
    rise = [line(0.0, warm / worth, 0.0, run.lr)] if warm else []
    return lone(*rise, *run.drops(-(-warm // worth), milestones, gamma))


def ConstantWithWarmupScheduler(
    t_warmup: str, alpha: float = 1.0, t_max: str = "1dur", **trainer: Unpack[Trainer]
) -> Schedule:
    """A straight line from 0 to lr·alpha over t_warmup, then lr·alpha.

    >>> ConstantWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10]).tolist()
    [0.5, 1.0]
    """
    run = _Training(**trainer)
    height = run.share("alpha", alpha)
    return run.warmed(Power(), t_warmup, t_max, height, height)


def LinearWithWarmupScheduler(
    t_warmup: str, alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: str = "1dur", **trainer: Unpack[Trainer]
) -> Schedule:
    """A straight line from 0 to lr·alpha_i over t_warmup, then one to lr·alpha_f at t_max.

    >>> LinearWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10, 35, 60]).tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    run = _Training(**trainer)
    a, b = run.share("alpha_i", alpha_i), run.share("alpha_f", alpha_f)
    return run.warmed(Power(), t_warmup, t_max, a, b)


def CosineAnnealingWithWarmupScheduler(
    t_warmup: str, t_max: str = "1dur", alpha_f: float = 0.0, **trainer: Unpack[Trainer]
) -> Schedule:
    """A straight line from 0 to lr over t_warmup, then a cosine to lr·alpha_f at t_max.

    >>> CosineAnnealingWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10, 35, 60]).tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    run = _Training(**trainer)
    return run.warmed(Cosine(), t_warmup, t_max, run.lr, run.share("alpha_f", alpha_f))


def PolynomialWithWarmupScheduler(
    t_warmup: str, power: float = 2.0, t_max: str = "1dur", alpha_f: float = 0.0, **trainer: Unpack[Trainer]
) -> Schedule:
    """A straight line from 0 to lr over t_warmup, then (1 − u)^power down to lr·alpha_f at t_max.

    >>> PolynomialWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10, 35, 60]).tolist()
    [0.5, 1.0, 0.25, 0.0]
    """
    run = _Training(**trainer)
    shape = Power(exponent=number("power", power))
    return run.warmed(shape, t_warmup, t_max, run.lr, run.share("alpha_f", alpha_f))
