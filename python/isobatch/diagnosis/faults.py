"""Explains wrong figures by their most likely causes. Numbers in, a diagnosis out: no process, no model."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from isobatch.diagnosis.causes import Cause, Diagnosis, either
from isobatch.limits import within

ULPS = 8


def gradient(
    ratio: float, *, micro_batch: float, accumulation: int, ranks: int, tolerance: float = 0.02
) -> Diagnosis | None:
    """Explains a gradient `ratio` times too large, its direction being right; None if nothing known does.

    DDP averages over ranks, so a faulty gradient is not multiplied by the effective batch. Where numbers
    coincide, all fitting causes are named.

    >>> gradient(4.0, micro_batch=8, accumulation=4, ranks=2).text
    'no division by the accumulation (4×)'
    """
    b, a, w = micro_batch, accumulation, ranks
    summed, undivided, over_ranks = Cause.SUMMED_LOSS, Cause.NOT_DIVIDED, Cause.SUMMED_OVER_RANKS
    faults: dict[tuple[Cause, ...], float] = {
        (summed,): b,
        (summed, undivided): b * a,
        (undivided,): a,
        (over_ranks,): w,
        (over_ranks, undivided): w * a,
        (summed, over_ranks): w * b,
        (summed, over_ranks, undivided): w * b * a,
        (Cause.DIVIDED_BY_RANKS,): 1 / w,
        (Cause.DIVIDED_TWICE,): 1 / a,
    }
    fitting = [
        causes for causes, factor in faults.items() if factor != 1 and within(ratio / factor - 1, tolerance)
    ]
    # The fewest faults explain best.
    fewest = min(map(len, fitting), default=0)
    fitting = [causes for causes in fitting if len(causes) == fewest]
    if not fitting:
        return None
    words = ", or ".join(" and ".join(cause.text for cause in causes) for causes in fitting)
    return Diagnosis(
        causes=tuple(dict.fromkeys(cause for causes in fitting for cause in causes)),
        text=f"{words} ({ratio:.4g}×)",
    )


def trainer_gradient(
    ratio: float, *, multiplied: float, micro_batch: float, accumulation: int, ranks: int, tolerance: float
) -> Diagnosis:
    """Explains a gradient `ratio` times too large, `multiplied` by transformers' Trainer.

    The loss of a `compute_loss` in the script is not multiplied by the processes.
    """
    trainer, rest = Cause.TRAINER_MULTIPLIES, ratio / multiplied
    if any(factor != 1 and within(ratio / factor - 1, tolerance) for factor in (multiplied, accumulation)):
        return trainer.likely(f"{ratio:.4g}×")
    beside = gradient(
        rest, micro_batch=micro_batch, accumulation=accumulation, ranks=ranks, tolerance=tolerance
    ) or Cause.GRADIENT_FACTOR.likely(f"{rest:.4g}×")
    text = f"{trainer.likely(f'{multiplied:.4g}×').text}, and {beside.text}"
    return Diagnosis(causes=(trainer, *beside.causes), text=text)


def trainer_loss(
    ratio: float, *, micro_batch: float, accumulation: int, ranks: int, tolerance: float
) -> Diagnosis | None:
    """Explains a gradient `ratio` times too large of a script's own loss in transformers' Trainer."""
    why = gradient(
        ratio, micro_batch=micro_batch, accumulation=accumulation, ranks=ranks, tolerance=tolerance
    )
    trainer = Cause.TRAINER_MULTIPLIES.likely(f"{ratio:.4g}×")
    if accumulation > 1 and ranks > 1 and within(ratio / (accumulation * ranks) - 1, tolerance):
        return trainer
    if why is not None and accumulation > 1 and within(ratio / accumulation - 1, tolerance):
        return either(why, trainer)
    return why


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
    (1, 'scheduler stepped once per process (2× too fast)')
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


def epoch(
    *, served: int, planned: int, unique: int, dataset: int, per_rank_all: bool, drop_last: bool, ranks: int
) -> Diagnosis:
    """Explains an epoch of other samples than planned, by all ranks' `served` and `unique` ones."""
    if ranks > 1 and per_rank_all:
        return Cause.NOT_DISTRIBUTED.likely("all ranks see the same data")
    if served < planned:
        how = "where the plan pads them" if planned >= dataset else "beyond the plan"
        return Cause.SAMPLES_DROPPED.likely(f"drop_last is set {how}" if drop_last else how)
    if served > planned:
        return Cause.SAMPLES_PADDED.likely()
    return (Cause.SAMPLES_REPEATED if unique < min(served, dataset) else Cause.ANOTHER_SAMPLES).likely()
