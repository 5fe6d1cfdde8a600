"""Explains a learning rate off its plan by the pace of its scheduler."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from isobatch.equivalence.laws import Cause, Diagnosis, either

ULPS = 8


def close(a: float, b: float, peak: float, ulp: float = 2.0**-52) -> bool:
    """Tells whether two learning rates agree within 8 units in the last place (`ulp`, of 1) of the peak."""
    return abs(a - b) <= ULPS * ulp * abs(peak)


class Pace(NamedTuple):
    """How fast a wrong scheduler may run: `ranks` or `accumulation` times, or once an epoch."""

    accumulation: int
    ranks: int
    epoch: int | None = None


def learning_rate(
    observed: Mapping[int, float],
    lr_at: Callable[[float], float],
    *,
    peak: float,
    pace: Pace,
    initial: float | None = None,
    ulp: float = 2.0**-52,
) -> tuple[int, Diagnosis] | None:
    """Finds the first step off the plan's learning rate, and why; None where all are on it.

    `initial`: what the optimizer was made with. A warmup from 0 that climbs twice as high looks like one that
    runs twice as fast: where this is another learning rate, nothing else is suspected.

    >>> step, why = learning_rate({0: 0.0, 1: 0.2}, lambda step: 0.1 * step, peak=1.0, pace=Pace(1, 2))
    >>> step, why.text
    (1, 'scheduler counts processes (2× too fast)')
    """

    def same(a: float, b: float) -> bool:
        return close(a, b, peak, ulp)

    first = next((step for step, lr in observed.items() if not same(lr, lr_at(step))), None)
    if first is None:
        return None
    if initial is not None and not same(initial, peak):
        return first, Cause.ANOTHER_LR.likely(f"{initial / peak:.4g}× the plan's")

    def runs(factor: float, ahead: int = 0) -> bool:
        return all(same(lr, lr_at(step * factor + ahead)) for step, lr in observed.items())

    fitting = _paces(runs, pace)
    if first > 0 and all(same(lr, lr_at(0)) for lr in observed.values()):
        fitting.append(Cause.SCHEDULER_NEVER.likely())
    if not fitting:
        planned = lr_at(first)
        times = f"{observed[first] / planned:.4g}× the plan's" if planned else ""
        fitting.append(Cause.ANOTHER_LR.likely(times))
    return first, either(*fitting)


def _paces(runs: Callable[..., bool], pace: Pace) -> list[Diagnosis]:
    """Explains a scheduler ahead of the plan, or too fast; `runs` tells whether a factor and a lead fit."""
    accumulation, ranks, epoch = pace
    fitting = []
    # Stepped also for the micro-batches before the first optimizer step, it is ahead from the start.
    per_micro_batch = any(runs(accumulation, ahead) for ahead in (0, accumulation - 1, accumulation))
    if ranks > 1 and runs(ranks):
        fitting.append(Cause.SCHEDULER_PER_PROCESS.likely(f"{ranks}× too fast"))
    if accumulation > 1 and per_micro_batch:
        fitting.append(Cause.SCHEDULER_PER_MICRO_BATCH.likely(f"{accumulation}× too fast"))
    if epoch is not None and epoch > 1 and runs(epoch):
        fitting.append(Cause.SCHEDULER_IN_EPOCHS.likely(f"{epoch}× too fast"))
    if runs(1, 1):
        fitting.append(Cause.SCHEDULER_TOO_EARLY.likely())
    for factor in dict.fromkeys((accumulation, ranks, accumulation * ranks)):
        if not fitting and factor > 1 and runs(1 / factor):
            fitting.append(Cause.SCHEDULER_TOO_SLOW.likely(f"{factor}× too slow"))
    # One fault explains better than two.
    if not fitting and min(accumulation, ranks) > 1 and runs(accumulation * ranks):
        both = Cause.SCHEDULER_PER_PROCESS, Cause.SCHEDULER_PER_MICRO_BATCH
        words = f"{both[0].text} and micro-batch ({accumulation * ranks}× too fast)"
        fitting.append(Diagnosis(causes=both, text=words))
    return fitting
