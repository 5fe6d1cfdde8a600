"""Whether a rank is slower than the others: all do the same work at once, in windows of time that can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from isobatch.diagnosis.causes import Cause
from isobatch.validate.measure.windows import FIRST, MOST, Window, window
from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.verdict import Proof, Verdict, unchecked

LIMIT_SECONDS = 15.0  # to look closer
CAUTION, FAIL = 1.25, 2.0  # times the median of the others
ALWAYS = 0.9  # the share of the windows in which a slow rank is slow


def slower(values: list[float]) -> list[float]:
    """How many times each value is above the median of the others.

    >>> slower([1.0, 1.0, 3.0])
    [0.5, 0.5, 3.0]
    """
    column = np.array(values)[:, np.newaxis]
    return [float(ratio) for ratio in (column / _others(column))[:, 0]]


def prove(
    group: Group, work: Callable[[], object], seconds: float, name: str, what: str
) -> tuple[Proof, list[list[Window]]]:
    """Measures some work in windows of `seconds`; where a rank looks slow, in many more. Gives the windows by rank."""
    if group.world_size == 1:
        mine = [window(group, work, seconds) for _ in range(FIRST)]
        return unchecked(name, "one rank: nothing to compare with"), [mine]
    begun = time.monotonic()
    windows: list[list[Window]] = [[] for _ in range(group.world_size)]
    group.pulse.grant(LIMIT_SECONDS)
    while True:
        more = [tuple(window(group, work, seconds)) for _ in range(FIRST)]
        for row, found in zip(windows, group.gather(more), strict=True):
            row += [Window(*one) for one in found]
        proof = judge(windows, name, what, group.pulse.who)
        late = group.from_first(time.monotonic() - begun > LIMIT_SECONDS)
        if proof.verdict is Verdict.PASS or len(windows[0]) >= MOST or late:
            break
    if group.emulated:
        text = "several ranks share a GPU: function only, not performance"
        proof = unchecked(name, text, **proof.values)
    return proof, windows


def judge(windows: list[list[Window]], name: str, what: str, who: Callable[[int], str]) -> Proof:
    """What windows of all ranks say.

    A rank is slow where it is slower than the others' median in nine of ten windows, also without the time in which it waited
    for a processor that others used. The others keep theirs: on a host where everybody waits, only a rank that is slow beyond
    that is distinguished from noise, which comes and goes, or hits whoever is there.
    """
    seconds = np.array([[w.seconds for w in row] for row in windows])
    waited = np.array([[w.waited for w in row] for row in windows])
    others = _others(seconds)
    typical = np.median(seconds / others, axis=1)
    slowest = int(typical.argmax())
    values = {
        "times_median_of_others": typical.tolist(),
        "windows": seconds.shape[1],
        "window_spread": (seconds.max(axis=1) / seconds.min(axis=1)).tolist(),
        "waited_share": waited.mean(axis=1).tolist(),
    }
    if typical[slowest] < CAUTION:
        text = (
            f"{what}: the slowest, {who(slowest)}, takes {typical[slowest]:.3f} × the median of the others; a caution from "
            f"{CAUTION} ×"
        )
        return Proof(name=name, verdict=Verdict.PASS, text=text, gate=CAUTION, values=values)
    own = seconds * (1 - waited) / others
    times, always = np.median(own, axis=1), np.quantile(own, 1 - ALWAYS, axis=1)
    slow = [rank for rank in range(len(windows)) if min(typical[rank], always[rank]) >= CAUTION]
    if not slow:
        count, often = seconds.shape[1], int((own[slowest] >= CAUTION).sum())
        return Proof(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            text=f"{what}: {who(slowest)} takes {typical[slowest]:.2f} × the median of the others; without the "
            f"{waited[slowest].mean():.0%} of its time in which other programs had its processor {times[slowest]:.2f} ×, and "
            f"{CAUTION} × or more in {often} of {count} windows, where a slow rank has nine of ten",
            diagnosis=Cause.NOISY_HOST.likely(),
            gate=CAUTION,
            values=values,
        )
    named = few([f"{who(rank)} {times[rank]:.2f} ×" for rank in slow])
    return Proof(
        name=name,
        verdict=Verdict.FAIL if times[slow].max() >= FAIL else Verdict.CAUTION,
        text=f"{what}: {named} the median of the others, in nine of ten windows at least {CAUTION} ×",
        diagnosis=Cause.SLOW_RANK.likely(few([who(rank) for rank in slow])),
        gate=CAUTION,
        values=values,
    )


def _others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each value the median of the others in its column. (A deviation from the median of all could never flag one of two.) In order
    they are those before it and those after it, so that two places of the sorted column are enough.

    >>> _others(np.array([[1.0], [5.0], [3.0]])).tolist()
    [[4.0], [2.0], [3.0]]
    """
    count = len(values)
    order = np.argsort(values, axis=0, kind="stable")
    place = np.argsort(order, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)

    def without(which: int) -> NDArray[np.float64]:
        """The value at a place of the order without its own."""
        found: NDArray[np.float64] = np.take_along_axis(ordered, which + (place <= which), axis=0)
        return found

    return (without((count - 2) // 2) + without((count - 1) // 2)) / 2
