"""Megatron-LM's learning rate, by the arguments of its OptimizerParamScheduler."""

from isobatch.errors import InputError, missing, must_be
from isobatch.schedules.form import Cosine, Exponential, Inner, Power, Reciprocal, Segment, Shape, level, line
from isobatch.schedules.schedule import Schedule, choice, length, lone, rate, span


def OptimizerParamScheduler(
    *,
    max_lr: float,
    lr_decay_steps: int,
    lr_decay_style: str,
    init_lr: float = 0.0,
    min_lr: float = 0.0,
    lr_warmup_steps: int = 0,
    wsd_decay_steps: int | None = None,
    lr_wsd_decay_style: str | None = None,
    increment: int = 1,
) -> Schedule:
    """init_lr up to max_lr at lr_warmup_steps, then the decay style; past the end min_lr.

    Megatron counts in samples: lengths are in samples where `increment`, what `.step(increment)` is called
    with at every optimizer step, is the global batch; x stays the optimizer step. Its weight decay is not
    covered.

    Args:
        max_lr: the peak.
        lr_decay_steps: where the decay ends, counted from 0.
        lr_decay_style: constant, linear, cosine, inverse-square-root or WSD.
        init_lr: the learning rate at 0.
        min_lr: the learning rate at the end.
        lr_warmup_steps: length of the warmup, its end included.
        wsd_decay_steps: length of WSD's decay, at the end; with 0 it drops there.
        lr_wsd_decay_style: linear, cosine, exponential or minus_sqrt.
        increment: what one optimizer step counts for.

    Raises:
        InputError: for what Megatron refuses (by assertions), too.

    >>> s = OptimizerParamScheduler(
    ...     max_lr=1.0, lr_warmup_steps=100, lr_decay_steps=1100, lr_decay_style="cosine", increment=10)
    >>> s.values([5, 10, 60, 110, 111]).tolist()
    [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    top, first, bottom = rate("max_lr", max_lr), rate("init_lr", init_lr), rate("min_lr", min_lr)
    total, warm = length("lr_decay_steps", lr_decay_steps), span("lr_warmup_steps", lr_warmup_steps)
    if bottom > top or first > top:
        raise InputError(
            f"max_lr must be at least init_lr ({first:g}) and min_lr ({bottom:g}), got {top:g}",
            field="max_lr",
        )
    if warm >= total:
        raise InputError(
            f"lr_warmup_steps must be below lr_decay_steps ({total:g}), got {warm:g}", field="lr_warmup_steps"
        )
    rise = [line(0.0, warm, first, top)] if warm else []
    past = level(total, bottom, after=True)

    def fall(start: float, shape: Shape, b: float = bottom) -> Segment:
        begin = max(start, warm)
        return Segment(
            start=begin, after=begin > 0, origin=start, length=total - start, a=top, b=b, shape=shape
        )

    match lr_decay_style:
        case "constant":
            schedule = lone(*rise, level(warm, top))
        case "linear":
            schedule = lone(*rise, fall(warm, Power()), past)
        case "cosine":
            schedule = lone(*rise, fall(warm, Cosine()), past)
        case "inverse-square-root":
            unit = max(warm, 1.0)
            curve = lone(
                Segment(origin=unit, length=unit, a=top, shape=Reciprocal(), beyond=True), low=bottom
            )
            inner = Segment(start=warm, shape=Inner(form=curve.form), beyond=True)
            schedule = lone(*rise, inner, past)
        case "WSD":
            if wsd_decay_steps is None or lr_wsd_decay_style is None:
                raise missing("wsd_decay_steps", "WSD needs it, and lr_wsd_decay_style")
            # 2·½^u − 1 has its asymptote as far below the end as the peak is above it.
            curves: dict[str, tuple[Shape, float]] = {
                "linear": (Power(), bottom),
                "cosine": (Cosine(), bottom),
                "exponential": (Exponential(rate=0.5), 2 * bottom - top),
                "minus_sqrt": (Power(stretch=0.5), bottom),
            }
            shape, b = curves[choice("lr_wsd_decay_style", lr_wsd_decay_style, curves)]
            over = span("wsd_decay_steps", wsd_decay_steps)
            decay = [fall(total - over, shape, b)] if over else []
            schedule = lone(*rise, level(warm, top), *decay, past)
        case _:
            styles = "constant, linear, cosine, inverse-square-root or WSD"
            raise must_be(styles, lr_decay_style, field="lr_decay_style")
    if increment == 1:
        return schedule
    return schedule.with_clock([(0, 0), (1, length("increment", increment))])
