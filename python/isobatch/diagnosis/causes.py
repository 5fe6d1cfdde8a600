"""From how a figure is off to what most likely went wrong. Numbers in, words out: no process, no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ULPS = 8


def gradient(
    ratio: float, *, micro_batch: float, accumulation: int, ranks: int, tolerance: float = 0.02
) -> str | None:
    """What makes a gradient `ratio` times too large, its direction being right. DDP averages over ranks, so the effective
    batch is not what a faulty gradient is multiplied by. Where the numbers coincide, all that fit are named.

    >>> gradient(4.0, micro_batch=8, accumulation=4, ranks=2)
    'no division by the accumulation (4×)'
    """
    b, a, w = micro_batch, accumulation, ranks
    faults = {
        "summed loss": b,
        "summed loss and no division by the accumulation": b * a,
        "no division by the accumulation": a,
        "gradients summed over ranks instead of averaged": w,
        "gradients summed over ranks, and no division by the accumulation": w * a,
        "summed loss, and gradients summed over ranks": w * b,
        "summed loss, gradients summed over ranks, and no division by the accumulation": w * b * a,
        "divided by the world size twice: DDP averages already": 1 / w,
        "divided by the accumulation twice": 1 / a,
    }
    fitting = [
        name for name, factor in faults.items() if factor != 1 and abs(ratio / factor - 1) <= tolerance
    ]
    # The fewest faults explain best.
    fewest = min((name.count(",") + name.count(" and no ") for name in fitting), default=0)
    fitting = [name for name in fitting if name.count(",") + name.count(" and no ") == fewest]
    return f"{', or '.join(fitting)} ({ratio:.4g}×)" if fitting else None


def close(a: float, b: float, peak: float, ulp: float = 2.0**-52) -> bool:
    """Whether two learning rates agree within 8 units in the last place of the peak. `ulp` is such a unit of 1."""
    return abs(a - b) <= ULPS * ulp * abs(peak)


def learning_rate(
    observed: Sequence[float],
    lr_at: Callable[[int], float],
    *,
    peak: float,
    accumulation: int,
    ranks: int,
    initial: float | None = None,
    ulp: float = 2.0**-52,
) -> tuple[int, str] | None:
    """The first step whose learning rate is not the plan's, and why; None where all are.

    Args:
        observed: the optimizer's learning rate at steps 0, 1, 2 ….
        lr_at: the plan's.
        initial: what the optimizer was made with: a warmup from 0 that climbs twice as high looks like one that runs twice as
            fast, so where this is another learning rate, nothing else is suspected.
        ulp: as in `close`.

    >>> learning_rate([0.0, 0.2, 0.4], lambda step: 0.1 * step, peak=1.0, accumulation=1, ranks=2)
    (1, 'scheduler stepped once per process (2× too fast)')
    """

    def same(a: float, b: float) -> bool:
        return close(a, b, peak, ulp)

    first = next((k for k, lr in enumerate(observed) if not same(lr, lr_at(k))), None)
    if first is None:
        return None
    if initial is not None and not same(initial, peak):
        return first, f"another learning rate, {initial / peak:.4g}× the plan's"

    def runs(factor: int, ahead: int) -> bool:
        return all(same(lr, lr_at(k * factor + ahead)) for k, lr in enumerate(observed))

    both = accumulation * ranks
    faults = {
        f"scheduler stepped once per process ({ranks}× too fast)": ranks > 1 and runs(ranks, 0),
        # Stepped also for the micro-batches before the first optimizer step, it is ahead from the start.
        f"scheduler stepped once per micro-batch ({accumulation}× too fast)": accumulation > 1
        and any(runs(accumulation, ahead) for ahead in (0, accumulation - 1, accumulation)),
        f"scheduler stepped once per process and micro-batch ({both}× too fast)": min(accumulation, ranks) > 1
        and runs(both, 0),
        "scheduler stepped before the optimizer": runs(1, 1),
        "scheduler never stepped": first > 0 and all(same(lr, lr_at(0)) for lr in observed),
    }
    fitting = [name for name, found in faults.items() if found]
    if not fitting:
        planned = lr_at(first)
        times = f", {observed[first] / planned:.4g}× the plan's" if planned else ""
        fitting = [f"another learning rate{times}"]
    return first, ", or ".join(fitting)


def epoch(
    *, served: int, planned: int, unique: int, dataset: int, per_rank_all: bool, drop_last: bool, ranks: int
) -> str:
    """Why an epoch does not serve the samples of the plan.

    Args:
        served: samples that all ranks served, repeats included; `unique` of them different.
        planned: what the plan says.
        dataset: its samples.
        per_rank_all: whether each rank served the whole dataset.
        drop_last: whether the sampler or the loader drops.

    >>> epoch(served=200, planned=100, unique=100, dataset=100, per_rank_all=True, drop_last=False, ranks=2)
    'the sampler is not distributed: all ranks see the same data'
    """
    if ranks > 1 and per_rank_all:
        return "the sampler is not distributed: all ranks see the same data"
    if served < planned:
        why = "drop_last is set" if drop_last else "samples are dropped"
        return f"{why} where the plan pads" if planned >= dataset else f"{why} beyond the plan"
    if served > planned:
        return "samples are padded where the plan drops"
    return (
        "samples are repeated, and others are never served"
        if unique < min(served, dataset)
        else "other samples"
    )
