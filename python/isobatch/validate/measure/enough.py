"""How well some samples tell their median, and when that is well enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

SURE = 0.95
"""Of the intervals that are said, so many have the median in them."""

PRECISION = {"quick": 0.025, "usual": 0.0, "full": 0.0}
"""Half an interval's width over the median at which no more samples are taken: a quarter of the gate from which on a time is called another
one. Beyond the quick extent all of the time is used."""

ROUGHLY, LATE = 0.05, 2.0
"""Where a median by which something is judged is not even known to this when its time is over, samples are taken for so many times as
long."""


@cache
def _place(count: int) -> int:
    """How many of the least samples, and of the largest, are outside of the interval; -1 where even all of them are too few.

    >>> _place(5), _place(6), _place(20)
    (-1, 0, 5)
    """
    outside, below = -1, 0.0
    for place in range(count // 2):
        below += math.comb(count, place) / 2**count
        if 2 * below > 1 - SURE:
            break
        outside = place
    return outside


def uncertainty(samples: Sequence[float]) -> float:
    """Half the width of the median's interval over the median, by the order of the samples alone, whatever their distribution is:
    each is below the true median as often as above it. Infinite for less than six.

    >>> uncertainty([1.0, 2.0, 3.0]), uncertainty([9.0, 10.0, 10.0, 10.0, 10.0, 11.0])
    (inf, 0.1)
    """
    outside = _place(len(samples))
    if outside < 0:
        return math.inf
    ordered = sorted(samples)
    return (ordered[-1 - outside] - ordered[outside]) / 2 / statistics.median(ordered)
