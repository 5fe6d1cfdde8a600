"""optax's schedule functions, under their own names and arguments."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isobatch.schedules.form import Cosine, Exponential, Power, Segment, Shape, level
from isobatch.schedules.schedule import Schedule, choice, join, length, lone, number, rate, rising


def constant_schedule(value: float) -> Schedule:
    """value.

    >>> constant_schedule(0.5).at(7)
    0.5
    """
    return lone(level(0.0, number("value", value)))


def polynomial_schedule(
    init_value: float, end_value: float, power: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """end + (init − end)·(1 − clip((x − begin)/steps))^power.

    Without steps it stays at init_value, as in optax.

    >>> polynomial_schedule(1.0, 0.0, 2, 10, transition_begin=5).values([5, 10, 15]).tolist()
    [1.0, 0.25, 0.0]
    """
    a, b, exponent = number("init_value", init_value), number("end_value", end_value), rate("power", power)
    if number("transition_steps", transition_steps) <= 0 or exponent == 0:
        return lone(level(0.0, a))
    begin = max(number("transition_begin", transition_begin), 0.0)
    return lone(Segment(origin=begin, length=transition_steps, a=a, b=b, shape=Power(exponent=exponent)))


def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """`polynomial_schedule` of power 1.

    >>> linear_schedule(1.0, 0.0, 10).at(4)
    0.6
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """init_value times every scale with its boundary at or before x.

    >>> piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.5}).values([9, 10, 20]).tolist()
    [1.0, 0.5, 0.25]
    """
    value = number("init_value", init_value)
    segments = [level(0.0, value)]
    for boundary, scale in _sorted(boundaries_and_scales):
        value *= scale
        segments.append(level(boundary, value))
    return lone(*segments)


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """init·rate^((x − begin)/steps), in stairs where staircase, no further than end_value.

    >>> exponential_decay(1.0, 10, 0.25, end_value=0.1).values([0, 5, 100]).tolist()
    [1.0, 0.5, 0.1]
    """
    a, factor = number("init_value", init_value), rate("decay_rate", decay_rate)
    if number("transition_steps", transition_steps) <= 0 or factor == 0:
        return lone(level(0.0, a))
    begin = max(number("transition_begin", transition_begin), 0.0)
    shape = Exponential(rate=factor, stairs=staircase)
    segment = Segment(origin=begin, length=transition_steps, a=a, shape=shape, beyond=True)
    if end_value is None:
        return lone(segment)
    bound = number("end_value", end_value)
    return lone(segment, low=bound) if factor < 1 else lone(segment, high=bound)


def cosine_decay_schedule(
    init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """init·((1 − alpha)·((1 + cos(π·min(x, T)/T))/2)^exponent + alpha).

    >>> cosine_decay_schedule(1.0, 10, alpha=0.5).values([0, 5, 10]).tolist()
    [1.0, 0.75, 0.5]
    """
    a = number("init_value", init_value)
    shape = Cosine(exponent=number("exponent", exponent))
    return lone(
        Segment(length=length("decay_steps", decay_steps), a=a, b=a * number("alpha", alpha), shape=shape)
    )


def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """Between boundaries from one value to the next, in a "linear" or a "cosine" way; each scale multiplies.

    >>> piecewise_interpolate_schedule("linear", 1.0, {10: 0.5}).values([0, 5, 10]).tolist()
    [1.0, 0.75, 0.5]
    """
    shapes: dict[str, Shape] = {"linear": Power(), "cosine": Cosine()}
    shape = shapes[choice("interpolate_type", interpolate_type, shapes)]
    value, start = number("init_value", init_value), 0.0
    segments: list[Segment] = []
    for boundary, scale in _sorted(boundaries_and_scales):
        a, value = value, value * scale
        if boundary > start:
            segments.append(
                Segment(start=start, origin=start, length=boundary - start, a=a, b=value, shape=shape)
            )
        start = boundary
    return lone(*segments, level(start, value))


def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """peak/div up to peak, back to peak/div, then down by final_div; boundaries int(pct·T).

    >>> linear_onecycle_schedule(100, 1.0).values([0, 30, 85]).round(6).tolist()
    [0.04, 1.0, 0.04]
    """
    total = length("transition_steps", transition_steps)
    start = number("peak_value", peak_value) / length("div_factor", div_factor)
    scales = {
        int(rate("pct_start", pct_start) * total): div_factor,
        int(rate("pct_final", pct_final) * total): 1.0 / div_factor,
        int(total): 1.0 / length("final_div_factor", final_div_factor),
    }
    return piecewise_interpolate_schedule("linear", start, scales)


def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """peak/div up to peak at int(pct·T), then down to peak/(div·final_div).

    >>> cosine_onecycle_schedule(100, 1.0).values([0, 30]).round(6).tolist()
    [0.04, 1.0]
    """
    total = length("transition_steps", transition_steps)
    start = number("peak_value", peak_value) / length("div_factor", div_factor)
    scales = {
        int(rate("pct_start", pct_start) * total): div_factor,
        int(total): 1.0 / (div_factor * length("final_div_factor", final_div_factor)),
    }
    return piecewise_interpolate_schedule("cosine", start, scales)


def warmup_constant_schedule(
    init_value: float, peak_value: float, warmup_steps: int, *, quirks: bool = True
) -> Schedule:
    """A straight line from init to peak over warmup_steps, then peak.

    With 0 warmup steps optax stays at init_value for ever; `quirks=False` is at the peak.

    >>> warmup_constant_schedule(0.0, 1.0, 0).at(9), warmup_constant_schedule(0.0, 1.0, 0, quirks=False).at(9)
    (0.0, 1.0)
    """
    if warmup_steps <= 0 and not quirks:
        return constant_schedule(peak_value)
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """A straight line up to peak, then a cosine down to end_value at decay_steps, the warmup included.

    >>> warmup_cosine_decay_schedule(0.0, 1.0, 10, 110).values([5, 10, 60, 110]).tolist()
    [0.5, 1.0, 0.5, 0.0]
    """
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    alpha = 0.0 if peak_value == 0 else number("end_value", end_value) / peak_value
    fall = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join([rise, fall], [warmup_steps])


def warmup_exponential_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """A straight line up to peak, then `exponential_decay` from there.

    >>> warmup_exponential_decay_schedule(0.0, 1.0, 10, 10, 0.5).values([5, 10, 20]).tolist()
    [0.5, 1.0, 0.5]
    """
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    fall = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return join([rise, fall], [warmup_steps])


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """One `warmup_cosine_decay_schedule` after another, each over its own decay_steps.

    >>> cycle = dict(init_value=0.0, peak_value=1.0, warmup_steps=2, decay_steps=10)
    >>> sgdr_schedule([cycle, cycle]).values([2, 10, 12]).tolist()
    [1.0, 0.0, 1.0]
    """
    cycles = list(cosine_kwargs)
    boundaries: list[float] = []
    for cycle in cycles:
        boundaries.append(cycle["decay_steps"] + (boundaries[-1] if boundaries else 0))
    return join([warmup_cosine_decay_schedule(**cycle) for cycle in cycles], boundaries[:-1])


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after another, each restarted at 0.

    >>> join_schedules([constant_schedule(1.0), linear_schedule(1.0, 0.0, 4)], [10]).at(12)
    0.5
    """
    return join(schedules, boundaries)


def _sorted(scales: Mapping[int, float] | None) -> list[tuple[float, float]]:
    pairs = sorted((scales or {}).items())
    points = rising("boundaries_and_scales", [boundary for boundary, _ in pairs])
    return [
        (point, rate("boundaries_and_scales", scale)) for point, (_, scale) in zip(points, pairs, strict=True)
    ]
