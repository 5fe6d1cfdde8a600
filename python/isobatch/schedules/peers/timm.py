"""timm.scheduler, class by class: first the optimizer's `lr`, then the class's own arguments.

x is what the scheduler is stepped with. timm's noise, which is random, and its plateau scheduler are no
schedules. Cycles are counted, not found by timm's logarithm, which misses restarts at large counts.

>>> CosineLRScheduler(1.0, t_initial=10, cycle_limit=2, cycle_decay=0.5).values([0, 5, 10, 20]).tolist()
[1.0, 0.5, 0.5, 0.0]
"""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from isobatch.errors import must_be
from isobatch.schedules import form, kinds
from isobatch.schedules.schedule import Schedule, choice, length, lone, number, rate, span


class Rise(TypedDict, total=False):
    """A straight line from warmup_lr_init over warmup_t; without warmup_prefix the decay runs under it."""

    warmup_t: int
    warmup_lr_init: float
    warmup_prefix: bool


class Cycles(Rise, total=False):
    """Cycle i takes Ti = t_initial·cycle_mul^i steps, from lr·d^i (d = cycle_decay) to m = lr_min."""

    lr_min: float
    cycle_mul: float
    cycle_decay: float
    cycle_limit: int


def _warmed(
    body: Schedule, peak: float, warmup_t: int = 0, warmup_lr_init: float = 0.0, warmup_prefix: bool = True
) -> Schedule:
    warm = span("warmup_t", warmup_t)
    if warm == 0:
        return body
    rise = form.line(0.0, warm, rate("warmup_lr_init", warmup_lr_init), peak)
    origin = warm if warmup_prefix else 0.0
    return lone(rise, form.Segment(start=warm, origin=origin, shape=form.Inner(form=body.form), beyond=True))


def _cycled(
    shape: form.Shape,
    lr: float,
    t_initial: float,
    lr_min: float = 0.0,
    cycle_mul: float = 1.0,
    cycle_decay: float = 1.0,
    cycle_limit: int = 1,
    **warmup: Unpack[Rise],
) -> Schedule:
    over, bottom = length("t_initial", t_initial), rate("lr_min", lr_min)
    cycle = form.Cycle(
        period=over,
        multiplier=number("cycle_mul", cycle_mul),
        peak_decay=rate("cycle_decay", cycle_decay),
        limit=int(span("cycle_limit", cycle_limit)),
        end=bottom,
    )
    body = lone(form.Segment(length=over, a=rate("lr", lr), b=bottom, shape=shape), cycle=cycle)
    # timm's Tanh alone rises to where its decay is by then.
    meets_decay = not warmup.setdefault("warmup_prefix", False) and isinstance(shape, form.Tanh)
    return _warmed(body, body.at(warmup.get("warmup_t", 0)) if meets_decay else lr, **warmup)


def CosineLRScheduler(
    lr: float, t_initial: int, *, k_decay: float = 1.0, **cycles: Unpack[Cycles]
) -> Schedule:
    """m + (lr·d^i − m)·(1 + cos(π·(t/Ti)^k))/2 in cycle i, then m; a warmup without prefix ends in a drop."""
    return _cycled(form.Cosine(stretch=number("k_decay", k_decay)), lr, t_initial, **cycles)


def PolyLRScheduler(
    lr: float, t_initial: int, power: float = 0.5, *, k_decay: float = 1.0, **cycles: Unpack[Cycles]
) -> Schedule:
    """m + (lr·d^i − m)·(1 − (t/Ti)^k)^power in cycle i, then m; warmup as in `CosineLRScheduler`."""
    shape = form.Power(stretch=number("k_decay", k_decay), exponent=number("power", power))
    return _cycled(shape, lr, t_initial, **cycles)


def TanhLRScheduler(
    lr: float, t_initial: int, lb: float = -7.0, ub: float = 3.0, **cycles: Unpack[Cycles]
) -> Schedule:
    """m + (lr·d^i − m)·(1 − tanh(lb·(1 − u) + ub·u))/2 in cycle i with u = t/Ti, then m."""
    return _cycled(form.Tanh(lower=number("lb", lb), upper=number("ub", ub)), lr, t_initial, **cycles)


def StepLRScheduler(lr: float, decay_t: float, decay_rate: float = 1.0, **warmup: Unpack[Rise]) -> Schedule:
    """lr·decay_rate^⌊t/decay_t⌋."""
    return _warmed(kinds.step(lr, length("decay_t", decay_t), decay_rate), lr, **warmup)


def MultiStepLRScheduler(
    lr: float, decay_t: Sequence[int], decay_rate: float = 1.0, *, quirks: bool = True, **warmup: Unpack[Rise]
) -> Schedule:
    """lr·decay_rate^(milestones reached): m at t = m − 1, unlike torch's; at t = m with `quirks=False`."""
    early = 1 if quirks else 0
    return _warmed(kinds.multistep(lr, [max(t - early, 0) for t in decay_t], decay_rate), lr, **warmup)


def WSDLRScheduler(
    lr: float,
    t_initial: int,
    decay_t: int,
    lr_min: float = 0.0,
    stable_fn: str = "constant",
    stable_timescale: float | None = None,
    stable_power: float = 0.5,
    decay_fn: str = "1-sqrt",
    decay_power: float = 0.5,
    decay_ratio: float = 0.1,
    warmup_t: int = 0,
    warmup_lr_init: float = 0.0,
) -> Schedule:
    """Warmup, then max(lr·stable(t), m), and over the last decay_t of t_initial down to m = lr_min.

    stable_fn: "constant", "rsqrt" or "power" ((1 + t/timescale)^−stable_power); decay_fn: "linear", "1-sqrt",
    "cosine", "power" (1 − u^decay_power) or "exp" (to decay_ratio, then stretched to reach lr_min).
    """
    peak, bottom = rate("lr", lr), rate("lr_min", lr_min)
    total, over = length("t_initial", t_initial), length("decay_t", decay_t)
    if over > total:
        raise must_be(f"at most t_initial ({t_initial})", decay_t, field="decay_t")
    if not 0 < number("decay_ratio", decay_ratio) < 1:
        raise must_be("a number between 0 and 1", decay_ratio, field="decay_ratio")
    # (r^u − r)/(1 − r) goes from 1 to 0 as a + … of the other shapes do, with its asymptote below 0.
    shapes: dict[str, tuple[form.Shape, float]] = {
        "linear": (form.Power(), 0.0),
        "1-sqrt": (form.Power(stretch=0.5), 0.0),
        "cosine": (form.Cosine(), 0.0),
        "power": (form.Power(stretch=number("decay_power", decay_power)), 0.0),
        "exp": (form.Exponential(rate=decay_ratio), -decay_ratio / (1 - decay_ratio)),
    }
    shape, asymptote = shapes[choice("decay_fn", decay_fn, shapes)]
    at = total - over
    decay = form.Segment(start=at, origin=at, length=over, b=asymptote, shape=shape)
    powers = {"constant": 0.0, "rsqrt": 0.5, "power": number("stable_power", stable_power)}
    power = powers[choice("stable_fn", stable_fn, powers)]
    stable = form.level(0.0, max(peak, bottom))
    if stable_fn != "constant":
        timescale = length("stable_timescale", warmup_t if stable_timescale is None else stable_timescale)
        falling = form.Segment(length=timescale, a=peak, shape=form.Reciprocal(exponent=power), beyond=True)
        stable = form.Segment(shape=form.Inner(form=lone(falling, low=bottom).form), beyond=True)
    share = form.Track(segments=(form.level(0.0, 1.0), decay) if at else (decay,))
    body = Schedule(form.Form(tracks=(form.Track(segments=(stable,)), share), floor=bottom))
    return _warmed(body, peak, warmup_t, warmup_lr_init)
