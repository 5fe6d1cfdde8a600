"""The fastest batch to the same loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isobatch import _core
from isobatch.limits import MAX_BATCH, common_rows, reals, wholes


def optimize_goodput(
    *,
    replicas: ArrayLike,
    tuned_batch: ArrayLike,
    max_batch: ArrayLike,
    noise_scale: ArrayLike,
    compute_constant: ArrayLike,
    compute_per_sample: ArrayLike,
    sync_seconds: ArrayLike,
    overlap: ArrayLike = 1.0,
    lead: ArrayLike = 0.0,
    max_micro_batch: ArrayLike | None = None,
    min_batch: ArrayLike | None = None,
    compute_floor: ArrayLike = 0.0,
    update_seconds: ArrayLike = 0.0,
) -> dict[str, NDArray[Any]]:
    """Finds the best split of each row by goodput, exactly, over every whole split.

    A micro-batch of b samples takes ``max(compute_floor, compute_constant + compute_per_sample * b)``
    seconds; all but the last of a step's passes take just that; behind the last one, without its share
    ``lead`` (0 to 1), ``sync_seconds`` hide as far as ``overlap`` (γ, 1 to 10) says; the update comes on top.
    m samples of a step are worth ``m * (noise_scale + tuned_batch) / (noise_scale + m)`` at the tuned batch
    (Pollux, OSDI 2021). The effective batch lies between ``min_batch`` (the tuned batch unless given) and
    ``max_batch``, the micro-batch is at most ``max_micro_batch``. Of equally good splits the larger
    micro-batch is taken.

    Every argument is one value or one a row. Returns the columns ``effective_batch``, ``micro_batch``,
    ``accumulation`` (int64, −1 where no whole split lies within the limits), ``step_seconds``,
    ``samples_per_second``, ``statistical_efficiency`` and ``goodput`` (float64, NaN there).

    Raises :class:`isobatch.errors.InputError`, naming row and field, for values that are not finite, times
    below 0, a time per sample that is not above 0, a noise scale below 0, an overlap outside 1 to 10, a lead
    outside 0 to 1, and counts below 1.

    >>> best = optimize_goodput(replicas=[1, 8], tuned_batch=128, max_batch=4096, max_micro_batch=64,
    ...     noise_scale=1000.0, compute_constant=0.01, compute_per_sample=0.001, sync_seconds=[0.0, 0.05])
    >>> best["effective_batch"].tolist(), best["accumulation"].tolist()
    ([128, 512], [2, 1])
    """
    time = "0 or more seconds", lambda x: x >= 0
    checks: dict[str, tuple[ArrayLike, str, Callable[[Any], Any]]] = {
        "compute_constant": (compute_constant, *time),
        "compute_per_sample": (compute_per_sample, "a time above 0", lambda x: x > 0),
        "compute_floor": (compute_floor, *time),
        "sync_seconds": (sync_seconds, *time),
        "overlap": (overlap, "a number from 1 to 10", lambda x: (x >= 1) & (x <= 10)),
        "update_seconds": (update_seconds, *time),
        "noise_scale": (noise_scale, "0 or more samples", lambda x: x >= 0),
        "lead": (lead, "a share from 0 to 1", lambda x: (x >= 0) & (x <= 1)),
    }
    times = {name: reals(values, name, legal, test) for name, (values, legal, test) in checks.items()}
    limits = {
        "replicas": replicas,
        "tuned_batch": tuned_batch,
        "min_batch": tuned_batch if min_batch is None else min_batch,
        "max_batch": max_batch,
        "max_micro_batch": max_batch if max_micro_batch is None else max_micro_batch,
    }
    counts = {name: wholes(values, name, 1, MAX_BATCH) for name, values in limits.items()}
    rows = common_rows({**times, **counts})
    micro, accumulation, seconds, efficiency, goodput = _core.goodput_rows(rows, {**times, **counts})
    batch = np.where(micro > 0, micro * accumulation * counts["replicas"].astype(np.int64), -1)
    return {
        "effective_batch": batch,
        "micro_batch": micro,
        "accumulation": accumulation,
        "step_seconds": seconds,
        "samples_per_second": np.where(micro > 0, batch, np.nan) / seconds,
        "statistical_efficiency": efficiency,
        "goodput": goodput,
    }
