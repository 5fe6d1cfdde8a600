"""The kinds of schedule: each a function that returns a frozen `Schedule`, x = optimizer step, lr = its peak.

Lengths are numbers of optimizer steps. Lengths in epochs, samples, tokens or percent belong to a recipe's schedule
text ("multistep(30ep, 60ep)"), which a plan resolves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from isobatch._core import Schedule
from isobatch.errors import InputError
from isobatch.schedules.form import (
    Cosine,
    Cycle,
    Exponential,
    Power,
    Reciprocal,
    Rex,
    Segment,
    Shape,
    Table,
    Tanh,
    join,
    length,
    level,
    line,
    lone,
    number,
    rate,
    rising,
    span,
)

DECAYS: dict[str, Shape] = {
    "linear": Power(),
    "cosine": Cosine(),
    "one_minus_sqrt": Power(stretch=0.5),
    "rex": Rex(),
}


def _decay(lr: float, steps: float, end: float, shape: Shape) -> Schedule:
    a, b, over = rate("lr", lr), rate("end", end), length("steps", steps)
    return lone(Segment(length=over, a=a, b=b, shape=shape))


def constant(lr: float) -> Schedule:
    """lr at every step.

    >>> import isobatch as ib
    >>> ib.schedules.constant(0.1).at(1000)
    0.1
    """
    return lone(level(0.0, rate("lr", lr)))


def linear(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − x/steps), then end.

    >>> import isobatch as ib
    >>> ib.schedules.linear(1.0, 4).values(range(6)).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return _decay(lr, steps, end, Power())


def linear_to_zero(lr: float, steps: float) -> Schedule:
    """lr·(1 − x/steps), then 0: decay to zero (Bergsma et al. 2025, arXiv:2502.15938).

    >>> import isobatch as ib
    >>> ib.schedules.linear_to_zero(1.0, 4).at(3)
    0.25
    """
    return linear(lr, steps)


def cosine(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 + cos(π·x/steps))/2, then end (Loshchilov, Hutter 2017, arXiv:1608.03983).

    >>> import isobatch as ib
    >>> ib.schedules.cosine(1.0, 100).at(50)
    0.5
    """
    return _decay(lr, steps, end, Cosine())


def polynomial(lr: float, steps: float, power: float = 1.0, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − x/steps)^power, then end.

    >>> import isobatch as ib
    >>> ib.schedules.polynomial(1.0, 4, power=2).at(2)
    0.25
    """
    return _decay(lr, steps, end, Power(exponent=number("power", power)))


def one_minus_sqrt(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − √(x/steps)), then end: the cooldown of Hägele et al. 2024 (arXiv:2405.18392).

    >>> import isobatch as ib
    >>> ib.schedules.one_minus_sqrt(1.0, 100).at(25)
    0.5
    """
    return _decay(lr, steps, end, Power(stretch=0.5))


def rex(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − u)/(1 − u/2) with u = x/steps, then end (Chen et al. 2021, arXiv:2107.04197).

    >>> import isobatch as ib
    >>> ib.schedules.rex(3.0, 100).at(50)
    2.0
    """
    return _decay(lr, steps, end, Rex())


def tanh(lr: float, steps: float, lower: float = -6.0, upper: float = 3.0, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − tanh(lower·(1 − u) + upper·u))/2 with u = x/steps (Hsueh et al. 2019, arXiv:1806.01593).

    It starts a little below lr and stays a little above end, by what tanh leaves at the bounds.

    >>> import isobatch as ib
    >>> ib.schedules.tanh(1.0, 100, lower=-1, upper=1).at(50)
    0.5
    """
    return _decay(lr, steps, end, Tanh(lower=number("lower", lower), upper=number("upper", upper)))


def exponential(lr: float, gamma: float, every: float = 1.0) -> Schedule:
    """lr·gamma^(x/every), without an end.

    >>> import isobatch as ib
    >>> ib.schedules.exponential(1.0, 0.25, every=10).at(5)
    0.5
    """
    shape = Exponential(rate=_factor("gamma", gamma))
    return lone(Segment(length=length("every", every), a=rate("lr", lr), shape=shape, beyond=True))


def inverse_sqrt(lr: float, timescale: float) -> Schedule:
    """lr/√(1 + x/timescale), without an end. After a warmup of `timescale` steps this is lr·√(W/step).

    >>> import isobatch as ib
    >>> ib.schedules.inverse_sqrt(1.0, 100).at(300)
    0.5
    """
    over = length("timescale", timescale)
    return lone(Segment(length=over, a=rate("lr", lr), shape=Reciprocal(), beyond=True))


def step(lr: float, every: float, gamma: float = 0.1) -> Schedule:
    """lr·gamma^⌊x/every⌋.

    >>> import isobatch as ib
    >>> ib.schedules.step(1.0, 30, gamma=0.5).values([29, 30, 60]).tolist()
    [1.0, 0.5, 0.25]
    """
    shape = Exponential(rate=_factor("gamma", gamma), stairs=True)
    return lone(Segment(length=length("every", every), a=rate("lr", lr), shape=shape, beyond=True))


def multistep(lr: float, milestones: Iterable[float], gamma: float = 0.1) -> Schedule:
    """lr·gamma^(milestones reached); a milestone listed twice counts twice.

    >>> import isobatch as ib
    >>> ib.schedules.multistep(1.0, [30, 60], gamma=0.5).values([29, 30, 60]).tolist()
    [1.0, 0.5, 0.25]
    """
    base, factor = rate("lr", lr), rate("gamma", gamma)
    points = rising("milestones", milestones, repeats=True)
    levels = {0.0: base}
    for count, at in enumerate(points, start=1):
        levels[at] = base * factor**count
    return lone(*(level(at, value) for at, value in levels.items()))


def wsd(lr: float, steps: float, decay_steps: float, shape: str = "linear", end: float = 0.0) -> Schedule:
    """Stable, then decay: lr until steps − decay_steps, then down to end at `steps` (Hu et al. 2024, arXiv:2404.06395).

    `shape` is the decay: "linear", "cosine", "one_minus_sqrt" or "rex". Put `warmup` in front for its warmup.

    >>> import isobatch as ib
    >>> ib.schedules.wsd(1.0, 100, 20).values([80, 90, 100]).tolist()
    [1.0, 0.5, 0.0]
    """
    peak, bottom = rate("lr", lr), rate("end", end)
    total, over = length("steps", steps), length("decay_steps", decay_steps)
    if over > total:
        raise InputError(f"{over:g} is longer than the {total:g} steps of the run", field="decay_steps")
    if shape not in DECAYS:
        raise InputError(f"{shape!r} is none of {', '.join(DECAYS)}", field="shape")
    at = total - over
    decay = Segment(start=at, origin=at, length=over, a=peak, b=bottom, shape=DECAYS[shape])
    return lone(decay) if at == 0 else lone(level(0.0, peak), decay)


def trapezoid(lr: float, steps: float, warmup_steps: float, decay_steps: float, end: float = 0.0) -> Schedule:
    """0 up to lr over warmup_steps, level, down to end over the last decay_steps, all straight.

    >>> import isobatch as ib
    >>> ib.schedules.trapezoid(1.0, 100, 10, 20).values([0, 5, 50, 90, 100]).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    total, up = length("steps", steps), span("warmup_steps", warmup_steps)
    if up >= total:
        raise InputError(f"{up:g} leaves nothing of the {total:g} steps of the run", field="warmup_steps")
    return warmup(wsd(lr, total - up, decay_steps, end=end), up)


def one_cycle(
    lr: float, steps: float, rise_steps: float, start: float | None = None, end: float | None = None
) -> Schedule:
    """Half a cosine from start up to lr over rise_steps, half a cosine down to end at `steps` (Smith, Topin 2018).

    start defaults to lr/25, end to start/10^4. Its boundaries are whole; torch's own, off by one, are those of
    `isobatch.schedules.torch.OneCycleLR`.

    >>> import isobatch as ib
    >>> ib.schedules.one_cycle(1.0, 100, 30, start=0.5, end=0.0).values([0, 15, 30, 65, 100]).tolist()
    [0.5, 0.75, 1.0, 0.5, 0.0]
    """
    top, total, up = rate("lr", lr), length("steps", steps), length("rise_steps", rise_steps)
    if up >= total:
        raise InputError(f"{up:g} leaves nothing of the {total:g} steps of the run", field="rise_steps")
    first = top / 25 if start is None else rate("start", start)
    last = first / 1e4 if end is None else rate("end", end)
    return lone(
        Segment(length=up, a=first, b=top, shape=Cosine()),
        Segment(start=up, origin=up, length=total - up, a=top, b=last, shape=Cosine()),
    )


def cosine_restarts(
    lr: float, period: float, multiplier: float = 1.0, decay: float = 1.0, end: float = 0.0
) -> Schedule:
    """Cosines from lr·decay^i to end, cycle i of period·multiplier^i steps (SGDR, arXiv:1608.03983).

    >>> import isobatch as ib
    >>> ib.schedules.cosine_restarts(1.0, 10, multiplier=2).values([0, 5, 10, 20, 30]).tolist()
    [1.0, 0.5, 1.0, 0.5, 1.0]
    """
    over = length("period", period)
    cycle = Cycle(period=over, multiplier=number("multiplier", multiplier), peak_decay=rate("decay", decay))
    return lone(Segment(length=over, a=rate("lr", lr), b=rate("end", end), shape=Cosine()), cycle=cycle)


def table(values: Sequence[float]) -> Schedule:
    """values[x], straight lines between whole steps, the last value held: what any scheduler printed.

    >>> import isobatch as ib
    >>> ib.schedules.table([0.1, 0.2, 0.4]).values([1, 1.5, 9]).tolist()
    [0.2, 0.30000000000000004, 0.4]
    """
    read = tuple(rate("values", value) for value in values)
    return lone(Segment(shape=Table(values=read), beyond=True))


def goyal(
    lr: float,
    steps_per_epoch: float,
    start: float = 0.0,
    warmup_epochs: float = 5.0,
    milestones: Iterable[float] = (30.0, 60.0, 80.0),
    gamma: float = 0.1,
) -> Schedule:
    """Start up to lr over five epochs, then a tenth at epochs 30, 60 and 80 (Goyal et al. 2017, arXiv:1706.02677).

    `start` is the learning rate of the small-batch run; milestones are epochs of the whole run.

    >>> import isobatch as ib
    >>> ib.schedules.goyal(3.2, 100, start=0.1).values([0, 500, 3000]).round(3).tolist()
    [0.1, 3.2, 0.32]
    """
    per_epoch = length("steps_per_epoch", steps_per_epoch)
    up = span("warmup_epochs", warmup_epochs) * per_epoch
    points = [epoch * per_epoch for epoch in rising("milestones", milestones, repeats=True)]
    base, factor = rate("lr", lr), rate("gamma", gamma)
    drops = [level(max(at, up), base * factor**count) for count, at in enumerate(points, start=1)]
    rise = [line(0.0, up, rate("start", start), base)] if up else []
    return lone(*rise, level(up, base), *drops)


def vaswani(model_dim: int, warmup_steps: float, factor: float = 1.0) -> Schedule:
    """factor·d^−½·min(n^−½, n·W^−3/2) with n = x + 1, the paper's step number (Vaswani et al. 2017, arXiv:1706.03762).

    >>> import isobatch as ib
    >>> round(ib.schedules.vaswani(512, 4000).at(3999), 9)
    0.000698771
    """
    up = length("warmup_steps", warmup_steps)
    top = number("factor", factor) * length("model_dim", model_dim) ** -0.5 / math.sqrt(up)
    return lone(
        Segment(origin=-1.0, length=up, a=0.0, b=top, shape=Power()),
        Segment(start=up - 1, origin=up - 1, length=up, a=top, shape=Reciprocal(), beyond=True),
    )


def warmup(schedule: Schedule, steps: float, start: float = 0.0) -> Schedule:
    """A straight line from start to the schedule's first value over `steps`, then the schedule from its step 0.

    The first value is reached at x = steps. 0 steps leave the schedule as it is.

    >>> import isobatch as ib
    >>> ib.schedules.warmup(ib.schedules.cosine(1.0, 90), 10).values([0, 5, 10, 55, 100]).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    up, first = span("steps", steps), rate("start", start)
    if up == 0:
        return schedule
    return join([lone(line(0.0, up, first, schedule.at(0))), schedule], [up])


def _factor(field: str, value: float) -> float:
    result = rate(field, value)
    if result == 0:
        raise InputError("0 is not above 0", field=field)
    return result
