"""torch.optim.lr_scheduler, class by class: first the optimizer's `lr`, then the class's own arguments.

Values are those of each class's closed form, which the stepped scheduler follows up to its own rounding:
several classes multiply the last learning rate by a ratio at every step and drift. Classes that react to data
(ReduceLROnPlateau) or take a function (LambdaLR, MultiplicativeLR) are no schedules; `table` holds what they
printed.
"""

from collections.abc import Iterable, Sequence

import msgspec

from isobatch.errors import InputError, missing, must_be
from isobatch.schedules import form, kinds
from isobatch.schedules.schedule import Schedule, choice, join, length, lone, number, product, rate, span


def _share(field: str, value: float) -> float:
    if not 0 <= rate(field, value) <= 1:
        raise must_be("a number from 0 to 1", value, field=field)
    return value


def StepLR(lr: float, step_size: float, gamma: float = 0.1) -> Schedule:
    """lr·gamma^⌊x/step_size⌋.

    >>> StepLR(1.0, step_size=30, gamma=0.5).at(60)
    0.25
    """
    return kinds.step(lr, length("step_size", step_size), gamma)


def MultiStepLR(lr: float, milestones: Iterable[float], gamma: float = 0.1) -> Schedule:
    """lr·gamma^(milestones reached), in whatever order; one listed twice counts twice.

    >>> MultiStepLR(1.0, [80, 30], gamma=0.5).at(30)
    0.5
    """
    return kinds.multistep(lr, sorted(milestones), gamma)


def ConstantLR(lr: float, factor: float = 1.0 / 3, total_iters: float = 5) -> Schedule:
    """lr·factor while x < total_iters, then lr; with 0 total_iters lr·factor for ever, as it is stepped.

    >>> ConstantLR(1.0, factor=0.5, total_iters=5).values([4, 5]).tolist()
    [0.5, 1.0]
    """
    base, until = rate("lr", lr), span("total_iters", total_iters)
    first = form.level(0.0, base * _share("factor", factor))
    return lone(first, form.level(until, base)) if until else lone(first)


def LinearLR(
    lr: float, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: float = 5
) -> Schedule:
    """lr·(s + (end_factor − s)·min(x, N)/N), s = start_factor, N = total_iters; lr·s where N is 0.

    >>> LinearLR(1.0, start_factor=0.5, total_iters=4).at(2)
    0.75
    """
    base = rate("lr", lr)
    if not _share("start_factor", start_factor) > 0:
        raise must_be("above 0 and at most 1", start_factor, field="start_factor")
    a, b = base * start_factor, base * _share("end_factor", end_factor)
    over = span("total_iters", total_iters)
    return lone(form.line(0.0, over, a, b)) if over else lone(form.level(0.0, a))


def ExponentialLR(lr: float, gamma: float) -> Schedule:
    """lr·gamma^x.

    >>> ExponentialLR(1.0, gamma=0.5).at(3)
    0.125
    """
    return kinds.exponential(lr, gamma)


def PolynomialLR(lr: float, total_iters: float = 5, power: float = 1.0) -> Schedule:
    """lr·(1 − min(x, N)/N)^power with N = total_iters; lr where N is 0.

    >>> PolynomialLR(1.0, total_iters=4, power=2.0).at(2)
    0.25
    """
    if span("total_iters", total_iters) == 0:
        return kinds.constant(lr)
    return kinds.polynomial(lr, total_iters, power)


def CosineAnnealingLR(lr: float, T_max: float, eta_min: float = 0.0, *, quirks: bool = True) -> Schedule:
    """eta_min + (lr − eta_min)·(1 + cos(π·x/T_max))/2.

    Past T_max torch's class rises again, although its documentation speaks of one annealing (pytorch#152081);
    `quirks=False` stays at eta_min.

    >>> CosineAnnealingLR(1.0, T_max=10).at(20), CosineAnnealingLR(1.0, T_max=10, quirks=False).at(20)
    (1.0, 0.0)
    """
    over, a, b = length("T_max", T_max), rate("lr", lr), rate("eta_min", eta_min)
    return lone(form.Segment(length=over, a=a, b=b, shape=form.Cosine(), beyond=quirks))


def CosineAnnealingWarmRestarts(lr: float, T_0: float, T_mult: float = 1, eta_min: float = 0.0) -> Schedule:
    """eta_min + (lr − eta_min)·(1 + cos(π·Tcur/Ti))/2, cycle i of Ti = T_0·T_mult^i steps; any x ≥ 0.

    torch's `.step(epoch)` finds the cycle by a logarithm and misses restarts at large counts; here, as in its
    plain `.step()`, every restart falls on its step.

    >>> CosineAnnealingWarmRestarts(1.0, T_0=10, T_mult=2).values([9.5, 10, 20, 30]).round(3).tolist()
    [0.006, 1.0, 0.5, 1.0]
    """
    if number("T_mult", T_mult) < 1:
        raise must_be("at least 1", T_mult, field="T_mult")
    return kinds.cosine_restarts(lr, length("T_0", T_0), T_mult, end=rate("eta_min", eta_min))


def OneCycleLR(
    lr: float,
    max_lr: float,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    cycle_momentum: bool = True,
    base_momentum: float = 0.85,
    max_momentum: float = 0.95,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
    *,
    quirks: bool = True,
) -> Schedule:
    """max_lr/div_factor up to max_lr at pct_start·T − 1, then down to start/final_div_factor at T − 1.

    With three_phase the phases end at pct_start·T − 1, 2·pct_start·T − 2 and T − 1. A boundary belongs to the
    earlier phase. As in torch, `lr` is overwritten, and the momentum arguments do not touch the learning
    rate. torch's class answers for step T too, one past its end, where it rebounds, and raises past that;
    `quirks=False` stays at the end.

    >>> s = OneCycleLR(0.1, max_lr=1.0, total_steps=101, pct_start=0.5)
    >>> round(s.at(0), 6), round(s.at(50), 2), s.at(100)
    (0.04, 1.0, 4e-06)

    Raises:
        InputError: when the length is missing, or a phase that is reached has no length. Evaluation raises it
            past T.
    """
    if total_steps is None:
        if epochs is None or steps_per_epoch is None:
            raise missing("total_steps", "give it, or epochs and steps_per_epoch")
        total_steps = epochs * steps_per_epoch
    total = length("total_steps", total_steps)
    shapes: dict[str, form.Shape] = {"cos": form.Cosine(), "linear": form.Power()}
    shape = shapes[choice("anneal_strategy", anneal_strategy, shapes)]
    first = rate("max_lr", max_lr) / length("div_factor", div_factor)
    final = first / length("final_div_factor", final_div_factor)
    up = float(_share("pct_start", pct_start) * total) - 1
    phases = [(up, first, max_lr), (total - 1, max_lr, final)]
    if three_phase:
        phases[1:] = [(float(2 * pct_start * total) - 2, max_lr, first), (total - 1, first, final)]
    segments: list[form.Segment] = []
    begin, last = 0.0, total
    for index, (stop, a, b) in enumerate(phases):
        final_phase = index == len(phases) - 1
        if (stop >= 0 or final_phase) and begin < total:
            if stop <= begin and begin >= total - 1:
                # Only step T would get here, where torch divides by zero.
                last = total - 1
                break
            if stop <= begin:
                raise InputError(
                    f"pct_start must leave each phase some steps, got one from step {begin:g} to {stop:g}",
                    field="pct_start",
                )
            curve = form.curve(shape, begin, stop - begin, a, b, beyond=quirks and final_phase)
            start = begin if segments else 0.0
            segments.append(msgspec.structs.replace(curve, start=start, after=bool(segments)))
        begin = stop
    return lone(*segments, last=last if quirks else None)


def CyclicLR(
    lr: float,
    base_lr: float,
    max_lr: float,
    step_size_up: float = 2000,
    step_size_down: float | None = None,
    mode: str = "triangular",
    gamma: float = 1.0,
    cycle_momentum: bool = True,
    base_momentum: float = 0.8,
    max_momentum: float = 0.9,
    *,
    quirks: bool = True,
) -> Schedule:
    """base_lr + (max_lr − base_lr)·triangle(x)·g: g is 1, 2^−cycle ("triangular2") or gamma^x ("exp_range").

    As in torch, `lr` is overwritten by base_lr, and the momentum arguments do not touch the learning rate.
    torch finds its phase from 1 + x/period and so loses about an ulp of it a cycle; `quirks=False` does not.

    >>> CyclicLR(0.0, base_lr=0.0, max_lr=1.0, step_size_up=4, mode="triangular2").values([2, 4, 12]).tolist()
    [0.5, 1.0, 0.5]
    """
    low, high, up = rate("base_lr", base_lr), rate("max_lr", max_lr), length("step_size_up", step_size_up)
    down = up if step_size_down is None else length("step_size_down", step_size_down)
    halving = (
        0.5 if choice("mode", mode, ("triangular", "triangular2", "exp_range")) == "triangular2" else 1.0
    )
    cycle = form.Cycle(period=up + down, amplitude_decay=halving, about=low, rounded=quirks)
    triangle = form.Track(
        segments=(form.line(0.0, up, low, high), form.line(up, down, high, low)), cycle=cycle
    )
    if mode != "exp_range":
        return Schedule(form.Form(tracks=(triangle,)))
    fade = form.Segment(shape=form.Exponential(rate=length("gamma", gamma)), beyond=True)
    return Schedule(form.Form(tracks=(triangle, form.Track(segments=(fade,))), floor=low))


def SequentialLR(lr: float, schedulers: Sequence[Schedule], milestones: Sequence[float]) -> Schedule:
    """One schedule after another, each from its own step 0 at its milestone.

    `schedulers` are schedules built with the same `lr`, which is not used again.

    >>> parts = [LinearLR(1.0, 0.5, total_iters=4), ExponentialLR(1.0, 0.5)]
    >>> SequentialLR(1.0, parts, milestones=[4]).values([2, 4, 5]).tolist()
    [0.75, 1.0, 0.5]
    """
    return join(schedulers, milestones)


def ChainedScheduler(lr: float, schedulers: Sequence[Schedule]) -> Schedule:
    """lr times the product of the factors of each schedule, built with the same `lr`.

    That is what torch does for the classes that multiply (not for a cosine with an eta_min, nor for the
    classes that set the learning rate: OneCycleLR, CyclicLR, CosineAnnealingWarmRestarts).

    >>> ChainedScheduler(1.0, [ConstantLR(1.0, 0.5, 5), ExponentialLR(1.0, 0.5)]).values([1, 5]).tolist()
    [0.25, 0.03125]
    """
    base = length("lr", lr)
    chain = product(*schedulers)
    return Schedule(msgspec.structs.replace(chain.form, scale=base ** (1 - len(schedulers))))
