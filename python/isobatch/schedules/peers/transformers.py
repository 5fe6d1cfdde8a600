"""transformers.get_scheduler: its names and arguments, with `lr` in the optimizer's place."""

from collections.abc import Callable
from typing import Any

from isobatch.errors import InputError, missing, must_be, unknown
from isobatch.schedules.form import (
    Cosine,
    Cycle,
    Inner,
    Power,
    Reciprocal,
    Segment,
    Shape,
    curve,
    level,
    line,
)
from isobatch.schedules.schedule import Schedule, choice, length, lone, number, rate, span


def get_scheduler(
    name: str,
    *,
    lr: float,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
    quirks: bool = True,
) -> Schedule:
    """Makes the schedule of transformers' Trainer from the same arguments.

    A warmup is lr·x/W, so that the first update is at 0. As in transformers, the cosines rise again past the
    end; cosine_with_restarts finds its restarts by a remainder and may miss one by rounding;
    cosine_warmup_with_min_lr is one step ahead, in the warmup and in the decay. `quirks=False` has none of
    this.

    Args:
        name: linear, cosine, cosine_with_restarts, polynomial, constant, constant_with_warmup, inverse_sqrt,
            cosine_with_min_lr, cosine_warmup_with_min_lr or warmup_stable_decay.
        lr: the optimizer's learning rate.
        num_warmup_steps: W.
        num_training_steps: T.
        scheduler_specific_kwargs: what the name takes beyond, as in transformers.
        quirks: keep what differs from the documented curve.

    Raises:
        InputError: for an unknown name, a missing or unknown argument.

    >>> s = get_scheduler("linear", lr=1.0, num_warmup_steps=10, num_training_steps=110)
    >>> s.values([0, 5, 10, 60, 110]).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    name = getattr(name, "value", name)
    if name not in _NAMES:
        raise unknown("schedule of transformers", name, _NAMES, field="name")
    build, needs = _NAMES[name]
    arguments = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    for field in needs:
        if arguments[field] is None:
            raise missing(field, f"{name} needs it")
    warm = span("num_warmup_steps", num_warmup_steps or 0)
    total = None if num_training_steps is None else length("num_training_steps", num_training_steps)
    try:
        return build(rate("lr", lr), warm, total, quirks, **(scheduler_specific_kwargs or {}))
    except TypeError as error:
        raise InputError(
            f"{name}: {str(error).partition(') ')[2] or error}", field="scheduler_specific_kwargs"
        ) from None


def _rise(lr: float, warm: float) -> list[Segment]:
    return [line(0.0, warm, 0.0, lr)] if warm else []


def _constant(lr: float, warm: float, total: float | None, quirks: bool) -> Schedule:
    return lone(level(0.0, lr))


def _constant_with_warmup(lr: float, warm: float, total: float | None, quirks: bool) -> Schedule:
    return lone(*_rise(lr, warm), level(warm, lr))


def _linear(lr: float, warm: float, total: float, quirks: bool) -> Schedule:
    rest = total - warm
    return lone(*_rise(lr, warm), line(warm, rest, lr, 0.0) if rest > 0 else level(warm, 0.0))


def _cosine(
    lr: float, warm: float, total: float, quirks: bool, num_cycles: float = 0.5, bottom: float = 0.0
) -> Schedule:
    shape = Cosine(waves=2 * number("num_cycles", num_cycles))
    fall = curve(shape, warm, max(1.0, total - warm), lr, bottom, beyond=quirks)
    return lone(*_rise(lr, warm), fall)


def _restarts(lr: float, warm: float, total: float, quirks: bool, num_cycles: int = 1) -> Schedule:
    over, waves = max(1.0, total - warm), length("num_cycles", num_cycles)
    if quirks:
        body = curve(Cosine(waves=waves, wrap=True), warm, over, lr, 0.0)
    else:
        cycle = Cycle(period=over / waves, limit=round(waves))
        inner = lone(Segment(length=over / waves, a=lr, shape=Cosine()), cycle=cycle).form
        body = Segment(start=warm, origin=warm, shape=Inner(form=inner), beyond=True)
    return lone(*_rise(lr, warm), body, level(warm + over, 0.0))


def _polynomial(
    lr: float, warm: float, total: float, quirks: bool, lr_end: float = 1e-7, power: float = 1.0
) -> Schedule:
    if rate("lr_end", lr_end) >= lr:
        raise must_be(f"below lr ({lr})", lr_end, field="lr_end")
    if total == warm:
        raise must_be(f"above num_warmup_steps ({warm:g})", total, field="num_training_steps")
    if total < warm:
        return lone(*_rise(lr, warm), level(warm, lr_end))
    shape = Power(exponent=number("power", power))
    return lone(*_rise(lr, warm), curve(shape, warm, total - warm, lr, lr_end))


def _inverse_sqrt(
    lr: float, warm: float, total: float | None, quirks: bool, timescale: float | None = None
) -> Schedule:
    over = (warm or 10_000) if timescale is None else length("timescale", timescale)
    return lone(*_rise(lr, warm), curve(Reciprocal(), warm, over, lr, 0.0, beyond=True))


def _bottom(lr: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    if (min_lr is None) == (min_lr_rate is None):
        raise InputError("min_lr: give either min_lr or min_lr_rate, not both or neither", field="min_lr")
    if min_lr is not None:
        return rate("min_lr", min_lr)
    return lr * rate("min_lr_rate", min_lr_rate)


def _cosine_with_min_lr(
    lr: float,
    warm: float,
    total: float,
    quirks: bool,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> Schedule:
    return _cosine(lr, warm, total, quirks, num_cycles, _bottom(lr, min_lr, min_lr_rate))


def _cosine_warmup_with_min_lr(
    lr: float,
    warm: float,
    total: float,
    quirks: bool,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> Schedule:
    shape = Cosine(waves=2 * number("num_cycles", num_cycles))
    bottom, over = _bottom(lr, min_lr, min_lr_rate), max(1.0, total - warm)
    first = None if warmup_lr_rate is None else lr * rate("warmup_lr_rate", warmup_lr_rate)
    if not quirks:
        rise = [line(0.0, warm, first or 0.0, lr)] if warm else []
        return lone(*rise, curve(shape, warm, over, lr, bottom))
    if warm == 0:
        rise = []
    elif first is None:
        rise = [Segment(origin=-1.0, length=warm, a=0.0, b=lr, shape=Power())]
    else:
        rise = [line(0.0, max(1.0, warm - 1), first, lr)]
    decay = Segment(start=warm, origin=warm - 1, length=over, a=lr, b=bottom, shape=shape, beyond=True)
    return lone(*rise, decay)


def _warmup_stable_decay(
    lr: float,
    warm: float,
    total: float | None,
    quirks: bool,
    num_decay_steps: float,
    num_stable_steps: float | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> Schedule:
    over, bottom = span("num_decay_steps", num_decay_steps), lr * rate("min_lr_ratio", min_lr_ratio)
    if num_stable_steps is None:
        if total is None:
            raise missing("num_training_steps", "give it, or num_stable_steps")
        num_stable_steps = total - warm - over
    rises: dict[str, Shape] = {"linear": Power(), "cosine": Cosine(), "1-sqrt": Power(exponent=0.5)}
    waves = 2 * number("num_cycles", num_cycles)
    falls: dict[str, Shape] = {"linear": Power(), "cosine": Cosine(waves=waves), "1-sqrt": Power(stretch=0.5)}
    rise, fall = (
        rises[choice("warmup_type", warmup_type, rises)],
        falls[choice("decay_type", decay_type, falls)],
    )
    segments = [curve(rise, 0.0, warm, bottom, lr)] if warm else []
    decay = warm + number("num_stable_steps", num_stable_steps)
    if num_stable_steps > 0:
        segments.append(level(warm, lr))
    if over:
        start = max(warm, decay)
        segments.append(Segment(start=start, origin=decay, length=over, a=lr, b=bottom, shape=fall))
    return lone(*segments, level(max(warm, decay + over), bottom))


_BOTH = ("num_warmup_steps", "num_training_steps")
_NAMES: dict[str, tuple[Callable[..., Schedule], tuple[str, ...]]] = {
    "linear": (_linear, _BOTH),
    "cosine": (_cosine, _BOTH),
    "cosine_with_restarts": (_restarts, _BOTH),
    "polynomial": (_polynomial, _BOTH),
    "constant": (_constant, ()),
    "constant_with_warmup": (_constant_with_warmup, _BOTH[:1]),
    "inverse_sqrt": (_inverse_sqrt, _BOTH[:1]),
    "cosine_with_min_lr": (_cosine_with_min_lr, _BOTH),
    "cosine_warmup_with_min_lr": (_cosine_warmup_with_min_lr, _BOTH),
    "warmup_stable_decay": (_warmup_stable_decay, _BOTH[:1]),
}
