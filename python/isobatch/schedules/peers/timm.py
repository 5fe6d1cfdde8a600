"""timm.scheduler, class by class: first the optimizer's `lr`, then the class's own arguments.

x is what the scheduler is stepped with (`step_update(x)`, or `step(x)` where it counts epochs). timm's noise,
being random, and its plateau scheduler, being driven by data, are no schedules. Cycles are counted, not found
by a logarithm as timm does, which misses restarts at large counts.
"""

from collections.abc import Sequence

from isobatch.errors import must_be
from isobatch.schedules import form, kinds
from isobatch.schedules.schedule import Schedule, choice, length, lone, number, rate, span


def _warmed(body: Schedule, warmup_t: float, init: float, peak: float, prefix: bool) -> Schedule:
    """A straight line to peak, then body: from its step 0 where prefix, else from where it is by then."""
    warm = span("warmup_t", warmup_t)
    if warm == 0:
        return body
    rise = form.line(0.0, warm, rate("warmup_lr_init", init), peak)
    inner = form.Segment(
        start=warm, origin=warm if prefix else 0.0, shape=form.Inner(form=body.form), beyond=True
    )
    return lone(rise, inner)


def _cycled(
    shape: form.Shape, lr: float, t_initial: float, lr_min: float, mul: float, decay: float, limit: int
) -> Schedule:
    over, bottom = length("t_initial", t_initial), rate("lr_min", lr_min)
    cycle = form.Cycle(
        period=over,
        multiplier=number("cycle_mul", mul),
        peak_decay=rate("cycle_decay", decay),
        limit=int(span("cycle_limit", limit)),
        end=bottom,
    )
    return lone(form.Segment(length=over, a=rate("lr", lr), b=bottom, shape=shape), cycle=cycle)


def CosineLRScheduler(
    lr: float,
    t_initial: int,
    lr_min: float = 0.0,
    cycle_mul: float = 1.0,
    cycle_decay: float = 1.0,
    cycle_limit: int = 1,
    warmup_t: int = 0,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool = False,
    k_decay: float = 1.0,
) -> Schedule:
    """m + (lr·d^i − m)·(1 + cos(π·(t/Ti)^k))/2 in cycle i of Ti = t_initial·cycle_mul^i, then m = lr_min.

    Without warmup_prefix the decay runs under the warmup, so that the learning rate drops where that ends.

    >>> CosineLRScheduler(1.0, t_initial=10, cycle_limit=2, cycle_decay=0.5).values([0, 5, 10, 20]).tolist()
    [1.0, 0.5, 0.5, 0.0]
    """
    shape = form.Cosine(stretch=number("k_decay", k_decay))
    body = _cycled(shape, lr, t_initial, lr_min, cycle_mul, cycle_decay, cycle_limit)
    return _warmed(body, warmup_t, warmup_lr_init, lr, warmup_prefix)


def PolyLRScheduler(
    lr: float,
    t_initial: int,
    power: float = 0.5,
    lr_min: float = 0.0,
    cycle_mul: float = 1.0,
    cycle_decay: float = 1.0,
    cycle_limit: int = 1,
    warmup_t: int = 0,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool = False,
    k_decay: float = 1.0,
) -> Schedule:
    """m + (lr·d^i − m)·(1 − (t/Ti)^k)^power in cycle i, then m = lr_min; warmup as in `CosineLRScheduler`.

    >>> PolyLRScheduler(1.0, t_initial=100, power=0.5).at(75)
    0.5
    """
    shape = form.Power(stretch=number("k_decay", k_decay), exponent=number("power", power))
    body = _cycled(shape, lr, t_initial, lr_min, cycle_mul, cycle_decay, cycle_limit)
    return _warmed(body, warmup_t, warmup_lr_init, lr, warmup_prefix)


def TanhLRScheduler(
    lr: float,
    t_initial: int,
    lb: float = -7.0,
    ub: float = 3.0,
    lr_min: float = 0.0,
    cycle_mul: float = 1.0,
    cycle_decay: float = 1.0,
    cycle_limit: int = 1,
    warmup_t: int = 0,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool = False,
) -> Schedule:
    """m + (lr·d^i − m)·(1 − tanh(lb·(1 − u) + ub·u))/2 in cycle i with u = t/Ti, then m = lr_min.

    Without warmup_prefix the warmup rises to where the decay is by then.

    >>> TanhLRScheduler(1.0, t_initial=10, lb=-1, ub=1).at(5)
    0.5
    """
    shape = form.Tanh(lower=number("lb", lb), upper=number("ub", ub))
    body = _cycled(shape, lr, t_initial, lr_min, cycle_mul, cycle_decay, cycle_limit)
    peak = lr if warmup_prefix else body.at(warmup_t)
    return _warmed(body, warmup_t, warmup_lr_init, peak, warmup_prefix)


def StepLRScheduler(
    lr: float,
    decay_t: float,
    decay_rate: float = 1.0,
    warmup_t: int = 0,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool = True,
) -> Schedule:
    """lr·decay_rate^⌊t/decay_t⌋.

    >>> StepLRScheduler(1.0, decay_t=2.5, decay_rate=0.5).values([2, 3, 5]).tolist()
    [1.0, 0.5, 0.25]
    """
    body = kinds.step(lr, length("decay_t", decay_t), decay_rate)
    return _warmed(body, warmup_t, warmup_lr_init, lr, warmup_prefix)


def MultiStepLRScheduler(
    lr: float,
    decay_t: Sequence[int],
    decay_rate: float = 1.0,
    warmup_t: int = 0,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool = True,
    *,
    quirks: bool = True,
) -> Schedule:
    """lr·decay_rate^(milestones reached).

    In timm a milestone m acts at t = m − 1, unlike torch's; `quirks=False` acts at m.

    >>> MultiStepLRScheduler(1.0, [10], decay_rate=0.5).values([8, 9]).tolist()
    [1.0, 0.5]
    """
    early = 1 if quirks else 0
    body = kinds.multistep(lr, [max(t - early, 0) for t in decay_t], decay_rate)
    return _warmed(body, warmup_t, warmup_lr_init, lr, warmup_prefix)


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

    >>> schedule = WSDLRScheduler(1.0, t_initial=100, decay_t=20, warmup_t=10, decay_fn="linear")
    >>> schedule.values([5, 90, 100]).tolist()
    [0.5, 1.0, 0.5]
    """
    peak, bottom = rate("lr", lr), rate("lr_min", lr_min)
    total, over, warm = length("t_initial", t_initial), length("decay_t", decay_t), span("warmup_t", warmup_t)
    if over > total:
        raise must_be(f"at most t_initial ({t_initial})", decay_t, field="decay_t")
    ratio = number("decay_ratio", decay_ratio)
    if not 0 < ratio < 1:
        raise must_be("a number between 0 and 1", decay_ratio, field="decay_ratio")
    # (r^u − r)/(1 − r) goes from 1 to 0 as a + … of the other shapes do, with its asymptote below 0.
    shapes: dict[str, tuple[form.Shape, float]] = {
        "linear": (form.Power(), 0.0),
        "1-sqrt": (form.Power(stretch=0.5), 0.0),
        "cosine": (form.Cosine(), 0.0),
        "power": (form.Power(stretch=number("decay_power", decay_power)), 0.0),
        "exp": (form.Exponential(rate=ratio), -ratio / (1 - ratio)),
    }
    shape, below = shapes[choice("decay_fn", decay_fn, shapes)]
    at = total - over
    decay = form.Segment(start=at, origin=at, length=over, b=below, shape=shape)
    share = form.Track(segments=(form.level(0.0, 1.0), decay) if at else (decay,))
    if stable_fn == "constant":
        stable = form.Track(segments=(form.level(0.0, max(peak, bottom)),))
    elif stable_fn in ("rsqrt", "power"):
        power = 0.5 if stable_fn == "rsqrt" else number("stable_power", stable_power)
        timescale = length("stable_timescale", warm if stable_timescale is None else stable_timescale)
        falling = form.Segment(length=timescale, a=peak, shape=form.Reciprocal(exponent=power), beyond=True)
        stable = form.Track(
            segments=(form.Segment(shape=form.Inner(form=lone(falling, low=bottom).form), beyond=True),)
        )
    else:
        raise must_be("constant, rsqrt or power", stable_fn, field="stable_fn")
    body = Schedule(form.Form(tracks=(stable, share), floor=bottom))
    return _warmed(body, warm, warmup_lr_init, peak, True)
