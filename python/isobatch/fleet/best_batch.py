"""The effective batch under a limit for the most GPU counts, by a sieve over all batches."""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_BATCH = 2**26
"""The largest limit: one counter for each batch stays in memory."""


class BestBatch(NamedTuple):
    """A batch in samples, and its split at each count, −1 where it does not work."""

    batch: int
    micro_batch: NDArray[np.int64]
    accumulation: NDArray[np.int64]


def best_batch(
    replicas: NDArray[np.int64], max_batch: int, micro_batches: Sequence[int] = (1,), multiple: int = 1
) -> BestBatch | None:
    """Finds the effective batch up to `max_batch` for the most counts; of equally good batches the largest.

    A batch works at a count if one of `micro_batches` × a whole accumulation × the replicas is the batch. The
    split takes the largest such micro-batch. `replicas` are those of each GPU count, 0 where no whole number
    fits.
    """
    micros = sorted(set(micro_batches))
    roots = [micro for micro in micros if all(micro % less for less in micros if less < micro)]
    counts = replicas[replicas > 0]
    tally = np.zeros(max_batch + 1, np.min_scalar_type(len(counts)))
    for at, root in enumerate(roots):
        # The multiples of root × count, without those that an earlier root has already counted.
        new = np.ones(max_batch // root, np.bool_)
        for earlier in roots[:at]:
            period = earlier // gcd(earlier, root)
            new[period - 1 :: period] = False
        for step in (counts[counts <= max_batch // root] * root).tolist():
            tally[step::step] += new[: max_batch // step]
    allowed = tally[multiple::multiple]
    if not allowed.any():
        return None
    batch = (len(allowed) - int(allowed[::-1].argmax())) * multiple
    share, rest = np.divmod(batch, np.maximum(replicas, 1))
    micro = np.full(len(replicas), -1)
    for each in micros:
        micro[(replicas > 0) & (rest == 0) & (share % each == 0)] = each
    return BestBatch(batch, micro, np.where(micro > 0, share // micro, -1))
