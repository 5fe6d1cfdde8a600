"""MosaicML Composer's schedulers, by their own names and arguments.

A scheduler there is a multiplier of the optimizer's learning rate; `lr` (1 by default) is what it multiplies. Times
are texts in ep, ba, sp, tok and dur. `max_duration` is the trainer's; `batches_per_epoch` its dataloader's length,
needed for ep; `samples_per_batch` and `tokens_per_batch` are needed for sp and tok. x is the batch = optimizer step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from isobatch._core import Schedule
from isobatch.errors import InputError

from ._form import (
    Cosine,
    Cycle,
    Exponential,
    Inner,
    Power,
    Segment,
    Shape,
    length,
    level,
    line,
    lone,
    number,
    rate,
)

__all__ = [
    "ConstantScheduler",
    "ConstantWithWarmupScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "ExponentialScheduler",
    "LinearScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepScheduler",
    "MultiStepWithWarmupScheduler",
    "PolynomialScheduler",
    "PolynomialWithWarmupScheduler",
    "StepScheduler",
]

_TIME = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*(ep|ba|sp|tok|dur)\s*")


class _Trainer:
    """What turns Composer's times into batches."""

    def __init__(self, max_duration: str, batches_per_epoch: int | None, **per_batch: int | None) -> None:
        self.per_epoch = batches_per_epoch
        self.per_batch = {"ba": 1, "sp": per_batch["samples_per_batch"], "tok": per_batch["tokens_per_batch"]}
        self.duration, self.unit = self._read("max_duration", max_duration)
        if self.unit == "dur":
            raise InputError(f"{max_duration!r} cannot be measured in itself", field="max_duration")

    def _read(self, field: str, time: str) -> tuple[float, str]:
        match = _TIME.fullmatch(str(time))
        if match is None:
            raise InputError(f"{time!r} is no time such as 10ep, 500ba, 1e6sp, 1e9tok or 0.5dur", field=field)
        value, unit = float(match[1]), match[2]
        if unit != "dur" and value != int(value):
            raise InputError(f"{time!r} must be a whole number", field=field)
        return value, unit

    def time(self, field: str, time: str) -> tuple[int, str]:
        """A time in ba, sp or tok, cut to a whole number as Composer does."""
        value, unit = self._read(field, time)
        if unit == "dur":
            value, unit = value * self.duration, self.unit
        if unit == "ep":
            if self.per_epoch is None:
                raise InputError(f"{time!r} needs batches_per_epoch", field=field)
            value, unit = value * self.per_epoch, "ba"
        return int(value), unit

    def rate(self, field: str, unit: str) -> int:
        """What one batch counts for in a unit."""
        worth = self.per_batch[unit]
        if worth is None:
            raise InputError(f"needs {'samples' if unit == 'sp' else 'tokens'}_per_batch", field=field)
        return int(length(field, worth))

    def clocked(self, schedule: Schedule, field: str, unit: str) -> Schedule:
        """A schedule in `unit`, read in batches."""
        worth = self.rate(field, unit)
        return schedule if worth == 1 else schedule.with_clock([(0, 0), (1, worth)])

    def batch(self, field: str, time: str) -> int:
        """The first batch at or past a time."""
        value, unit = self.time(field, time)
        return -(-value // self.rate(field, unit))

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
            raise InputError(f"{t_warmup!r} and t_max {t_max!r} must come to the same unit", field="t_warmup")
        run, whole = self.time("max_duration", "1dur")
        if whole == other and total < run:
            raise InputError(
                f"{t_max!r} is shorter than max_duration: the end would be undefined", field="t_max"
            )
        rise = [line(0.0, warm, 0.0, a)] if warm else []
        rest = level(warm, a)
        if total > warm and a != b:
            rest = Segment(start=warm, origin=warm, length=total - warm, a=a, b=b, shape=shape)
        return self.clocked(lone(*rise, rest), "t_warmup", unit)


def StepScheduler(
    step_size: str,
    gamma: float = 0.1,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·gamma^⌊time/step_size⌋.

    >>> StepScheduler("2ep", 0.5, max_duration="6ep", batches_per_epoch=10).values([19, 20, 40]).tolist()
    [1.0, 0.5, 0.25]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    value, unit = trainer.time("step_size", step_size)
    shape = Exponential(rate=length("gamma", gamma), stairs=True)
    stairs = Segment(length=length("step_size", value), a=rate("lr", lr), shape=shape, beyond=True)
    return trainer.clocked(lone(stairs), "step_size", unit)


def MultiStepScheduler(
    milestones: Sequence[str],
    gamma: float = 0.1,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·gamma^(milestones reached); milestones may differ in unit.

    >>> MultiStepScheduler(["2ep", "30ba"], 0.5, max_duration="6ep", batches_per_epoch=10).values([20, 30]).tolist()
    [0.5, 0.25]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base, factor = rate("lr", lr), rate("gamma", gamma)
    points = sorted(trainer.batch("milestones", milestone) for milestone in milestones)
    drops = [level(at, base * factor**count) for count, at in enumerate(points, start=1)]
    return lone(level(0.0, base), *drops)


def ConstantScheduler(
    alpha: float = 1.0,
    t_max: str = "1dur",
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·alpha before t_max, lr from there on, as Composer has it.

    >>> ConstantScheduler(0.5, "10ba", max_duration="20ba").values([9, 10]).tolist()
    [0.5, 1.0]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base = rate("lr", lr)
    return lone(level(0.0, base * rate("alpha", alpha)), level(trainer.batch("t_max", t_max), base))


def LinearScheduler(
    alpha_i: float = 1.0,
    alpha_f: float = 0.0,
    t_max: str = "1dur",
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·(alpha_i + (alpha_f − alpha_i)·min(1, time/t_max)).

    >>> LinearScheduler(max_duration="10ba").at(4)
    0.6
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base = rate("lr", lr)
    return trainer.fall(Power(), t_max, base * rate("alpha_i", alpha_i), base * rate("alpha_f", alpha_f))


def ExponentialScheduler(
    gamma: float,
    decay_period: str = "1ep",
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·gamma^(time/decay_period).

    >>> ExponentialScheduler(0.25, "10ba", max_duration="1ep").at(5)
    0.5
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    value, unit = trainer.time("decay_period", decay_period)
    over = length("decay_period", value)
    curve = Segment(
        length=over, a=rate("lr", lr), shape=Exponential(rate=length("gamma", gamma)), beyond=True
    )
    return trainer.clocked(lone(curve), "decay_period", unit)


def CosineAnnealingScheduler(
    t_max: str = "1dur",
    alpha_f: float = 0.0,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·(alpha_f + (1 − alpha_f)·(1 + cos(π·min(1, time/t_max)))/2).

    >>> CosineAnnealingScheduler(max_duration="10ba").at(5)
    0.5
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base = rate("lr", lr)
    return trainer.fall(Cosine(), t_max, base, base * rate("alpha_f", alpha_f))


def CosineAnnealingWarmRestartsScheduler(
    t_0: str,
    t_mult: float = 1.0,
    alpha_f: float = 0.0,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """Cosines from lr to lr·alpha_f, the first over t_0, each next int(t_mult·the last) long.

    >>> s = CosineAnnealingWarmRestartsScheduler("10ba", 1.5, max_duration="60ba")
    >>> s.values([0, 10, 25, 47]).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base, (over, unit) = rate("lr", lr), trainer.time("t_0", t_0)
    run = math.ceil(trainer.duration * (trainer.per_epoch or 1) * trainer.rate("t_0", unit))
    growth, bottom, start = number("t_mult", t_mult), base * rate("alpha_f", alpha_f), 0
    segments: list[Segment] = []
    while True:
        if over < 1:
            raise InputError("the cycles shrink to nothing before the run ends", field="t_mult")
        wave = Segment(start=start, origin=start, length=over, a=base, b=bottom, shape=Cosine())
        if int(growth * over) == over or start > run:
            # From here on the cycles are equal.
            rest = lone(Segment(length=over, a=base, b=bottom, shape=Cosine()), cycle=Cycle(period=over))
            segments.append(Segment(start=start, origin=start, shape=Inner(form=rest.form), beyond=True))
            return trainer.clocked(lone(*segments), "t_0", unit)
        segments.append(wave)
        start, over = start + over, int(growth * over)


def PolynomialScheduler(
    power: float,
    t_max: str = "1dur",
    alpha_f: float = 0.0,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """lr·(alpha_f + (1 − alpha_f)·(1 − min(1, time/t_max))^power).

    >>> PolynomialScheduler(2.0, max_duration="10ba").at(5)
    0.25
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base, shape = rate("lr", lr), Power(exponent=number("power", power))
    return trainer.fall(shape, t_max, base, base * rate("alpha_f", alpha_f))


def MultiStepWithWarmupScheduler(
    t_warmup: str,
    milestones: Sequence[str],
    gamma: float = 0.1,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """A straight line from 0 to lr over t_warmup, then lr·gamma^(milestones reached).

    >>> s = MultiStepWithWarmupScheduler("10ba", ["30ba"], 0.5, max_duration="60ba")
    >>> s.values([5, 10, 30]).tolist()
    [0.5, 1.0, 0.5]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base, factor = rate("lr", lr), rate("gamma", gamma)
    warm, unit = trainer.time("t_warmup", t_warmup)
    # The line is in the warmup's own unit; the milestones may be in others.
    rate_of = trainer.rate("t_warmup", unit)
    end = -(-warm // rate_of)
    rise = [line(0.0, warm / rate_of, 0.0, base)] if warm else []
    points = sorted(trainer.batch("milestones", milestone) for milestone in milestones)
    drops = [level(max(at, end), base * factor**count) for count, at in enumerate(points, start=1)]
    return lone(*rise, level(end, base), *drops)


def ConstantWithWarmupScheduler(
    t_warmup: str,
    alpha: float = 1.0,
    t_max: str = "1dur",
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """A straight line from 0 to lr·alpha over t_warmup, then lr·alpha.

    >>> ConstantWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10]).tolist()
    [0.5, 1.0]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    height = rate("lr", lr) * rate("alpha", alpha)
    return trainer.warmed(Power(), t_warmup, t_max, height, height)


def LinearWithWarmupScheduler(
    t_warmup: str,
    alpha_i: float = 1.0,
    alpha_f: float = 0.0,
    t_max: str = "1dur",
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """A straight line from 0 to lr·alpha_i over t_warmup, then one to lr·alpha_f at t_max.

    >>> LinearWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10, 35, 60]).tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base = rate("lr", lr)
    a, b = base * rate("alpha_i", alpha_i), base * rate("alpha_f", alpha_f)
    return trainer.warmed(Power(), t_warmup, t_max, a, b)


def CosineAnnealingWithWarmupScheduler(
    t_warmup: str,
    t_max: str = "1dur",
    alpha_f: float = 0.0,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """A straight line from 0 to lr over t_warmup, then a cosine to lr·alpha_f at t_max.

    >>> CosineAnnealingWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10, 35, 60]).tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base = rate("lr", lr)
    return trainer.warmed(Cosine(), t_warmup, t_max, base, base * rate("alpha_f", alpha_f))


def PolynomialWithWarmupScheduler(
    t_warmup: str,
    power: float = 2.0,
    t_max: str = "1dur",
    alpha_f: float = 0.0,
    *,
    max_duration: str,
    batches_per_epoch: int | None = None,
    samples_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    lr: float = 1.0,
) -> Schedule:
    """A straight line from 0 to lr over t_warmup, then (1 − u)^power down to lr·alpha_f at t_max.

    >>> PolynomialWithWarmupScheduler("10ba", max_duration="60ba").values([5, 10, 35, 60]).tolist()
    [0.5, 1.0, 0.25, 0.0]
    """
    trainer = _Trainer(
        max_duration,
        batches_per_epoch,
        samples_per_batch=samples_per_batch,
        tokens_per_batch=tokens_per_batch,
    )
    base, shape = rate("lr", lr), Power(exponent=number("power", power))
    return trainer.warmed(shape, t_warmup, t_max, base, base * rate("alpha_f", alpha_f))
