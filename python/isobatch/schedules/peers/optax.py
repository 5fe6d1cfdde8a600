"""optax's schedule functions, under their own names and arguments.

>>> warmup_cosine_decay_schedule(0.0, 1.0, 10, 110).values([5, 10, 60, 110]).tolist()
[0.5, 1.0, 0.5, 0.0]
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any

from isobatch.schedules.form import Cosine, Exponential, Power, Segment, Shape, curve, level
from isobatch.schedules.schedule import Schedule, choice, length, lone, number, rate, rising
from isobatch.schedules.schedule import join as join_schedules


def constant_schedule(value: float) -> Schedule:
    """value."""
    return lone(level(0.0, number("value", value)))


def polynomial_schedule(
    init_value: float, end_value: float, power: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """end + (init − end)·(1 − clip((x − begin)/steps))^power; without steps init_value, as in optax."""
    a, b, shape = number("init_value", init_value), number("end_value", end_value), Power(exponent=power)
    if number("transition_steps", transition_steps) <= 0 or rate("power", power) == 0:
        return constant_schedule(a)
    begin = max(number("transition_begin", transition_begin), 0.0)
    return lone(Segment(origin=begin, length=transition_steps, a=a, b=b, shape=shape))


def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """`polynomial_schedule` of power 1."""
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """init_value times every scale with its boundary at or before x."""
    return lone(*(level(start, value) for start, value in _scaled(init_value, boundaries_and_scales)))


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """init·rate^((x − begin)/steps), in stairs where staircase, no further than end_value."""
    a, factor = number("init_value", init_value), rate("decay_rate", decay_rate)
    if number("transition_steps", transition_steps) <= 0 or factor == 0:
        return constant_schedule(a)
    begin = max(number("transition_begin", transition_begin), 0.0)
    shape = Exponential(rate=factor, stairs=staircase)
    segment = Segment(origin=begin, length=transition_steps, a=a, shape=shape, beyond=True)
    end = None if end_value is None else number("end_value", end_value)
    return lone(segment, low=end) if factor < 1 else lone(segment, high=end)


def cosine_decay_schedule(
    init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """init·((1 − alpha)·((1 + cos(π·min(x, T)/T))/2)^exponent + alpha)."""
    a, over = number("init_value", init_value), length("decay_steps", decay_steps)
    shape = Cosine(exponent=number("exponent", exponent))
    return lone(Segment(length=over, a=a, b=a * number("alpha", alpha), shape=shape))


def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """Goes from one boundary's value to the next, "linear" or "cosine"; each scale multiplies."""
    shapes: dict[str, Shape] = {"linear": Power(), "cosine": Cosine()}
    shape = shapes[choice("interpolate_type", interpolate_type, shapes)]
    points = _scaled(init_value, boundaries_and_scales)
    segments = [
        curve(shape, start, stop - start, a, b) for (start, a), (stop, b) in pairwise(points) if stop > start
    ]
    return lone(*segments, level(*points[-1]))


def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """peak/div up to peak, back to peak/div, then down by final_div; boundaries int(pct·T)."""
    total, div = length("transition_steps", transition_steps), length("div_factor", div_factor)
    scales = {
        int(rate("pct_start", pct_start) * total): div,
        int(rate("pct_final", pct_final) * total): 1.0 / div,
        int(total): 1.0 / length("final_div_factor", final_div_factor),
    }
    return piecewise_interpolate_schedule("linear", number("peak_value", peak_value) / div, scales)


def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """peak/div up to peak at int(pct·T), then down to peak/(div·final_div)."""
    total, div = length("transition_steps", transition_steps), length("div_factor", div_factor)
    end = 1.0 / (div * length("final_div_factor", final_div_factor))
    scales = {int(rate("pct_start", pct_start) * total): div, int(total): end}
    return piecewise_interpolate_schedule("cosine", number("peak_value", peak_value) / div, scales)


def warmup_constant_schedule(
    init_value: float, peak_value: float, warmup_steps: int, *, quirks: bool = True
) -> Schedule:
    """A straight line from init to peak; with 0 warmup steps init, as in optax, or peak if `quirks=False`."""
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
    """A straight line up to peak, then a cosine down to end_value at decay_steps, the warmup included."""
    alpha = 0.0 if peak_value == 0 else number("end_value", end_value) / peak_value
    fall = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), fall], [warmup_steps])


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
    """A straight line up to peak, then `exponential_decay` from there."""
    fall = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), fall], [warmup_steps])


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """One `warmup_cosine_decay_schedule` after another, each over its own decay_steps."""
    cycles = list(cosine_kwargs)
    ends = list(accumulate(cycle["decay_steps"] for cycle in cycles))
    return join_schedules([warmup_cosine_decay_schedule(**cycle) for cycle in cycles], ends[:-1])


def _scaled(init_value: float, scales: Mapping[int, float] | None) -> list[tuple[float, float]]:
    """Returns the value from each boundary on, times all scales so far."""
    pairs = sorted((scales or {}).items())
    points = rising("boundaries_and_scales", [boundary for boundary, _ in pairs])
    factors = [rate("boundaries_and_scales", scale) for _, scale in pairs]
    values = accumulate(factors, lambda value, scale: value * scale, initial=number("init_value", init_value))
    return list(zip([0.0, *points], values, strict=True))
