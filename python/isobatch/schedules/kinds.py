"""The kinds of schedule: constructors in steps under `@text.kind(...)`, and the builders of their texts.

x is the optimizer step, 0 for the first update; lengths are numbers of steps. Lengths in epochs, samples,
tokens or percent belong to a recipe's schedule text ("multistep(30ep, 60ep)"), which a plan resolves. Each
kind has its oracle in tests/reference/schedules.py.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from isobatch.errors import InputError, missing, must_be
from isobatch.schedules import form, text
from isobatch.schedules.schedule import (
    Schedule,
    choice,
    factor,
    length,
    lone,
    multiplied,
    number,
    rate,
    rising,
    span,
    warmup,
)

# ---- smooth decays ----


@text.kind(lambda run: [form.level(run.warmup, run.peak)])
def constant(lr: float) -> Schedule:
    """lr at every step.

    Args:
        lr: the learning rate, of every step.

    >>> constant(0.1).at(1000)
    0.1
    """
    return lone(form.level(0.0, rate("lr", lr)))


def _falling(lr: float, steps: float, end: float, shape: form.Shape) -> Schedule:
    """Falls from lr to end over `steps`, then stays there."""
    a, b, over = rate("lr", lr), rate("end", end), length("steps", steps)
    return lone(form.Segment(length=over, a=a, b=b, shape=shape))


@text.kind(lambda run: run.fall(form.Power()), tail=form.Power(), until=text.UNTIL)
def linear(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − x/steps), then end.

    Args:
        lr: at step 0.
        steps: optimizer steps until end.
        end: the learning rate from there on.

    >>> linear(1.0, 4).values(range(6)).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return _falling(lr, steps, end, form.Power())


@text.kind(lambda run: run.fall(form.Power(), b=0.0), until=text.UNTIL)
def linear_to_zero(lr: float, steps: float) -> Schedule:
    """lr·(1 − x/steps), then 0: decay to zero (Bergsma et al. 2025, arXiv:2502.15938).

    Args:
        lr: at step 0.
        steps: optimizer steps until 0.

    >>> linear_to_zero(1.0, 4).at(3)
    0.25
    """
    return linear(lr, steps)


@text.kind(
    lambda run: run.fall(form.Power(exponent=run.number("power", 1.0))),
    power=text.Argument(text.NUMBER),
    until=text.UNTIL,
)
def polynomial(lr: float, steps: float, power: float = 1.0, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − x/steps)^power, then end.

    Args:
        lr: at step 0.
        steps: optimizer steps until end.
        power: above 0; 1 is a line.
        end: the learning rate from there on.

    >>> polynomial(1.0, 4, power=2).at(2)
    0.25
    """
    return _falling(lr, steps, end, form.Power(exponent=factor("power", power)))


@text.kind(lambda run: run.fall(form.Cosine()), tail=form.Cosine(), until=text.UNTIL)
def cosine(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 + cos(π·x/steps))/2, then end (Loshchilov, Hutter 2017, arXiv:1608.03983).

    Args:
        lr: at step 0.
        steps: optimizer steps until end.
        end: the learning rate from there on.

    >>> cosine(1.0, 100).at(50)
    0.5
    """
    return _falling(lr, steps, end, form.Cosine())


@text.kind(lambda run: run.fall(form.Power(stretch=0.5)), tail=form.Power(stretch=0.5), until=text.UNTIL)
def one_minus_sqrt(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − √(x/steps)), then end: the cooldown of Hägele et al. 2024 (arXiv:2405.18392).

    Args:
        lr: at step 0.
        steps: optimizer steps until end.
        end: the learning rate from there on.

    >>> one_minus_sqrt(1.0, 100).at(25)
    0.5
    """
    return _falling(lr, steps, end, form.Power(stretch=0.5))


@text.kind(lambda run: run.fall(form.Rex()), tail=form.Rex(), until=text.UNTIL)
def rex(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − u)/(1 − u/2) with u = x/steps, then end (Chen et al. 2021, arXiv:2107.04197).

    Args:
        lr: at step 0.
        steps: optimizer steps until end.
        end: the learning rate from there on.

    >>> rex(3.0, 100).at(50)
    2.0
    """
    return _falling(lr, steps, end, form.Rex())


def _build_tanh(run: text.PlanRun) -> list[form.Segment]:
    return run.fall(form.Tanh(lower=run.number("lower", -6.0), upper=run.number("upper", 3.0)))


@text.kind(_build_tanh, lower=text.Argument(text.SIGNED), upper=text.Argument(text.SIGNED), until=text.UNTIL)
def tanh(lr: float, steps: float, lower: float = -6.0, upper: float = 3.0, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − tanh(lower·(1 − u) + upper·u))/2, u = x/steps (Hsueh et al., arXiv:1806.01593).

    It starts a little below lr and stays a little above end, by what tanh leaves at the bounds.

    Args:
        lr: at step 0, nearly.
        steps: optimizer steps until end.
        lower, upper: where tanh begins and ends.
        end: the learning rate from there on.

    >>> tanh(1.0, 100, lower=-1, upper=1).at(50)
    0.5
    """
    return _falling(lr, steps, end, form.Tanh(lower=number("lower", lower), upper=number("upper", upper)))


def _build_exponential(run: text.PlanRun) -> list[form.Segment]:
    if "gamma" in run.spec.arguments:
        shape = form.Exponential(rate=run.number("gamma", 1.0))
        return run.floored(run.tail(shape, run.steps("every", 1), 0.0, beyond=True))
    if not 0 < run.min_lr < run.peak:
        raise missing("gamma", "give exponential its gamma, or the recipe a min_lr above 0 to end at")
    return run.fall(form.Exponential(rate=run.min_lr / run.peak), b=0.0)


@text.kind(
    _build_exponential, gamma=text.Argument(text.NUMBER), every=text.Argument(text.LENGTH), until=text.UNTIL
)
def exponential(lr: float, gamma: float, every: float = 1.0) -> Schedule:
    """lr·gamma^(x/every), without an end.

    Args:
        lr: at step 0.
        gamma: factor over `every` steps, above 0.
        every: optimizer steps.

    >>> exponential(1.0, 0.25, every=10).at(5)
    0.5
    """
    shape = form.Exponential(rate=factor("gamma", gamma))
    return lone(form.Segment(length=length("every", every), a=rate("lr", lr), shape=shape, beyond=True))


def _build_inverse_sqrt(run: text.PlanRun) -> list[form.Segment]:
    """From the peak where the warmup ends, with its length as the timescale."""
    timescale = run.steps("timescale", run.warmup or 10_000)
    return run.floored(run.tail(form.Reciprocal(), timescale, 0.0, beyond=True))


@text.kind(_build_inverse_sqrt, timescale=text.Argument(text.LENGTH))
def inverse_sqrt(lr: float, timescale: float) -> Schedule:
    """lr/√(1 + x/timescale), without an end. After a warmup of `timescale` steps this is lr·√(W/step).

    Args:
        lr: at step 0.
        timescale: optimizer steps; lr/√2 is reached there.

    >>> inverse_sqrt(1.0, 100).at(300)
    0.5
    """
    over = length("timescale", timescale)
    return lone(form.Segment(length=over, a=rate("lr", lr), shape=form.Reciprocal(), beyond=True))


def _build_vaswani(run: text.PlanRun) -> list[form.Segment]:
    if run.warmup == 0:
        raise missing("warmup", "vaswani is defined by its warmup, so the recipe must have one")
    return _build_inverse_sqrt(run)


@text.kind(_build_vaswani)
def vaswani(model_dim: int, warmup_steps: float, factor: float = 1.0) -> Schedule:
    """factor·d^−½·min(n^−½, n·W^−3/2), n = x + 1 (Vaswani et al. 2017, arXiv:1706.03762).

    Args:
        model_dim: d, the width of the model.
        warmup_steps: W, optimizer steps until the peak.
        factor: of the whole curve.

    >>> round(vaswani(512, 4000).at(3999), 9)
    0.000698771
    """
    up = length("warmup_steps", warmup_steps)
    top = number("factor", factor) * length("model_dim", model_dim) ** -0.5 / math.sqrt(up)
    return lone(
        form.Segment(origin=-1.0, length=up, a=0.0, b=top, shape=form.Power()),
        form.curve(form.Reciprocal(), up - 1, up, top, beyond=True),
    )


# ---- drops ----


def _build_step(run: text.PlanRun) -> list[form.Segment]:
    shape = form.Exponential(rate=run.number("gamma", 0.1), stairs=True)
    # Stairs are counted from the start of the run, the warmup included, as published recipes count them.
    stairs = form.Segment(
        start=run.warmup, length=run.steps("every", 1), a=run.peak, shape=shape, beyond=True
    )
    return run.floored(stairs)


@text.kind(_build_step, every=text.Argument(text.LENGTH, required=True), gamma=text.Argument(text.NUMBER))
def step(lr: float, every: float, gamma: float = 0.1) -> Schedule:
    """lr·gamma^⌊x/every⌋.

    Args:
        lr: at step 0.
        every: optimizer steps between two drops.
        gamma: factor of each drop, above 0.

    >>> step(1.0, 30, gamma=0.5).values([29, 30, 60]).tolist()
    [1.0, 0.5, 0.25]
    """
    shape = form.Exponential(rate=factor("gamma", gamma), stairs=True)
    return lone(form.Segment(length=length("every", every), a=rate("lr", lr), shape=shape, beyond=True))


def _build_multistep(run: text.PlanRun) -> list[form.Segment]:
    milestones = [milestone.steps(run.units, run.total) for milestone in run.spec.arguments["milestones"]]
    return run.drops(milestones, run.number("gamma", 0.1))


@text.kind(
    _build_multistep,
    milestones=text.Argument(text.LENGTH, required=True, many=True),
    gamma=text.Argument(text.NUMBER),
)
def multistep(lr: float, milestones: Iterable[float], gamma: float = 0.1) -> Schedule:
    """lr·gamma^(milestones reached); a milestone listed twice counts twice.

    Args:
        lr: at step 0.
        milestones: optimizer steps of the drops, in rising order.
        gamma: factor of each drop.

    >>> multistep(1.0, [30, 60], gamma=0.5).values([29, 30, 60]).tolist()
    [1.0, 0.5, 0.25]
    """
    base, factor = rate("lr", lr), rate("gamma", gamma)
    points = rising("milestones", milestones, repeats=True)
    levels = {0.0: base}
    for count, at in enumerate(points, start=1):
        levels[at] = multiplied(base, factor, count)
    return lone(*(form.level(at, value) for at, value in levels.items()))


def _build_goyal(run: text.PlanRun) -> list[form.Segment]:
    milestones = [text.Length(Fraction(epoch), "ep").steps(run.units, run.total) for epoch in (30, 60, 80)]
    return run.drops(milestones, 0.1)


@text.kind(_build_goyal)
def goyal(
    lr: float,
    steps_per_epoch: float,
    start: float = 0.0,
    warmup_epochs: float = 5.0,
    milestones: Iterable[float] = (30.0, 60.0, 80.0),
    gamma: float = 0.1,
) -> Schedule:
    """Up to lr over five epochs, then × 0.1 at epochs 30, 60 and 80 (Goyal et al. 2017, arXiv:1706.02677).

    Args:
        lr: after the warmup.
        steps_per_epoch: optimizer steps of an epoch.
        start: the learning rate of the small-batch run, at step 0.
        warmup_epochs: length of the warmup; 0 for none.
        milestones: epochs of the drops, from the start of the run.
        gamma: factor of each drop.

    >>> goyal(3.2, 100, start=0.1).values([0, 500, 3000]).round(3).tolist()
    [0.1, 3.2, 0.32]
    """
    per_epoch = length("steps_per_epoch", steps_per_epoch)
    up = span("warmup_epochs", warmup_epochs) * per_epoch
    points = [epoch * per_epoch for epoch in rising("milestones", milestones, repeats=True)]
    base, factor = rate("lr", lr), rate("gamma", gamma)
    drops = [
        form.level(max(at, up), multiplied(base, factor, count)) for count, at in enumerate(points, start=1)
    ]
    rise = [form.line(0.0, up, rate("start", start), base)] if up else []
    return lone(*rise, form.level(up, base), *drops)


# ---- pieces and cycles ----


def _build_wsd(run: text.PlanRun) -> list[form.Segment]:
    """Builds a level until the decay, by default over the last fifth of the run."""
    over = run.steps("decay", max(1, run.total // 5))
    rest = run.total - run.warmup
    if over > rest:
        raise InputError(
            f"decay must be at most the {rest:,g} steps after the warmup, got {over:,g}", field="schedule"
        )
    at = run.total - over
    shape = text.tails()[run.spec.arguments.get("shape", "linear")]
    return [form.level(run.warmup, run.peak), form.curve(shape, at, over, run.peak, run.min_lr)]


@text.kind(_build_wsd, decay=text.Argument(text.LENGTH), shape=text.Argument(text.WORD))
def wsd(lr: float, steps: float, decay_steps: float, shape: str = "linear", end: float = 0.0) -> Schedule:
    """lr until steps − decay_steps, then down to end at `steps` (Hu et al. 2024, arXiv:2404.06395).

    Put `warmup` in front for its warmup.

    Args:
        lr: before the decay.
        steps: optimizer steps of the run.
        decay_steps: the last of them, at most all.
        shape: of the decay: "linear", "cosine", "one_minus_sqrt" or "rex".
        end: the learning rate at `steps`.

    >>> wsd(1.0, 100, 20).values([80, 90, 100]).tolist()
    [1.0, 0.5, 0.0]
    """
    peak, bottom = rate("lr", lr), rate("end", end)
    total, over = length("steps", steps), length("decay_steps", decay_steps)
    if over > total:
        raise must_be(f"at most the {total:g} steps of the run", decay_steps, field="decay_steps")
    at, tail = total - over, text.tails()[choice("shape", shape, text.tails())]
    decay = form.curve(tail, at, over, peak, bottom)
    return lone(decay) if at == 0 else lone(form.level(0.0, peak), decay)


@text.kind(_build_wsd, decay=text.Argument(text.LENGTH))
def trapezoid(lr: float, steps: float, warmup_steps: float, decay_steps: float, end: float = 0.0) -> Schedule:
    """0 up to lr over warmup_steps, level, down to end over the last decay_steps, all straight.

    Args:
        lr: of the level.
        steps: optimizer steps of the run.
        warmup_steps: the first of them.
        decay_steps: the last of them.
        end: the learning rate at `steps`.

    >>> trapezoid(1.0, 100, 10, 20).values([0, 5, 50, 90, 100]).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    total, up = length("steps", steps), span("warmup_steps", warmup_steps)
    if up >= total:
        raise must_be(f"shorter than the {total:g} steps of the run", warmup_steps, field="warmup_steps")
    return warmup(wsd(lr, total - up, decay_steps, end=end), up)


def _build_one_cycle(run: text.PlanRun) -> Sequence[form.Segment]:
    if run.warmup:
        return [run.tail(form.Cosine(), run.total - run.warmup, run.min_lr)]
    up = run.steps("rise", max(1, run.total * 3 // 10))
    if up >= run.total:
        raise InputError(
            f"rise must be shorter than the {run.total:,g} steps of the run, got {up:,g}", field="schedule"
        )
    return one_cycle(run.peak, run.total, up, end=run.min_lr).form.tracks[0].segments


@text.kind(_build_one_cycle, rise=text.Argument(text.LENGTH))
def one_cycle(
    lr: float, steps: float, rise_steps: float, start: float | None = None, end: float | None = None
) -> Schedule:
    """Half a cosine from start to lr over rise_steps, half a cosine down to end (Smith, Topin 2018).

    Its boundaries are whole; torch's own, off by one, are those of `isobatch.schedules.torch.OneCycleLR`.

    Args:
        lr: at the peak.
        steps: optimizer steps of the run.
        rise_steps: those before the peak.
        start: at step 0; None: lr/25.
        end: at `steps`; None: start/10^4.

    >>> one_cycle(1.0, 100, 30, start=0.5, end=0.0).values([0, 15, 30, 65, 100]).tolist()
    [0.5, 0.75, 1.0, 0.5, 0.0]
    """
    top, total, up = rate("lr", lr), length("steps", steps), length("rise_steps", rise_steps)
    if up >= total:
        raise must_be(f"shorter than the {total:g} steps of the run", rise_steps, field="rise_steps")
    first = top / 25 if start is None else rate("start", start)
    last = first / 1e4 if end is None else rate("end", end)
    return lone(
        form.Segment(length=up, a=first, b=top, shape=form.Cosine()),
        form.curve(form.Cosine(), up, total - up, top, last),
    )


def _build_cosine_restarts(run: text.PlanRun) -> list[form.Segment]:
    multiplier, decay = run.number("multiplier", 1.0), run.number("decay", 1.0)
    waves = cosine_restarts(run.peak, run.steps("period", 1), multiplier, decay, run.min_lr)
    inner = form.Inner(form=waves.form)
    return [form.Segment(start=run.warmup, origin=run.warmup, shape=inner, beyond=True)]


@text.kind(
    _build_cosine_restarts,
    period=text.Argument(text.LENGTH, required=True),
    multiplier=text.Argument(text.NUMBER),
    decay=text.Argument(text.NUMBER),
)
def cosine_restarts(
    lr: float, period: float, multiplier: float = 1.0, decay: float = 1.0, end: float = 0.0
) -> Schedule:
    """Cosines from lr·decay^i to end, cycle i of period·multiplier^i steps (SGDR, arXiv:1608.03983).

    Args:
        lr: at step 0.
        period: optimizer steps of the first cycle.
        multiplier: of the period, from cycle to cycle.
        decay: factor of the peak, from cycle to cycle.
        end: the learning rate at the end of each cycle.

    >>> cosine_restarts(1.0, 10, multiplier=2).values([0, 5, 10, 20, 30]).tolist()
    [1.0, 0.5, 1.0, 0.5, 1.0]
    """
    over = length("period", period)
    growth, fade = number("multiplier", multiplier), rate("decay", decay)
    cycle = form.Cycle(period=over, multiplier=growth, peak_decay=fade)
    wave = form.Segment(length=over, a=rate("lr", lr), b=rate("end", end), shape=form.Cosine())
    return lone(wave, cycle=cycle)


@text.kind()
def table(values: Sequence[float]) -> Schedule:
    """values[x], linear between whole steps, then the last value: what any scheduler printed.

    Args:
        values: (steps,), learning rates.

    >>> table([0.1, 0.2, 0.4]).values([1, 1.5, 9]).tolist()
    [0.2, 0.30000000000000004, 0.4]
    """
    read = tuple(rate("values", value) for value in values)
    return lone(form.Segment(shape=form.Table(values=read), beyond=True))
