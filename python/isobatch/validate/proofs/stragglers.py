"""Whether a rank is slower than the others: all do the same work at once, in windows of time that can be compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from isobatch.diagnosis.causes import Cause
from isobatch.validate.measure.windows import FIRST, MOST, Window, window
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
    return [value / other for value, other in zip(values, _others(values), strict=True)]


def prove(
    group: Group, work: Callable[[], object], seconds: float, name: str, what: str
) -> tuple[Proof, list[list[Window]]]:
    """Measures some work in windows of `seconds`; where a rank looks slow, in many more. Gives the windows by rank."""
    if group.world_size == 1:
        mine = [window(group, work, seconds) for _ in range(FIRST)]
        return unchecked(name, "one rank: nothing to compare with"), [mine]
    mine, begun = [], time.monotonic()
    group.pulse.grant(LIMIT_SECONDS)
    while True:
        mine += [window(group, work, seconds) for _ in range(FIRST)]
        windows: list[list[Window]] = group.gather(mine)
        proof = judge(windows, name, what, group.pulse.who)
        late = group.from_first(time.monotonic() - begun > LIMIT_SECONDS)
        if proof.verdict is Verdict.PASS or len(mine) >= MOST or late:
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
    others = np.array([_others(list(column)) for column in seconds.T]).T
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
    named = ", ".join(f"{who(rank)} {times[rank]:.2f} ×" for rank in slow)
    return Proof(
        name=name,
        verdict=Verdict.FAIL if times[slow].max() >= FAIL else Verdict.CAUTION,
        text=f"{what}: {named} the median of the others, in nine of ten windows at least {CAUTION} ×",
        diagnosis=Cause.SLOW_RANK.likely(", ".join(who(rank) for rank in slow)),
        gate=CAUTION,
        values=values,
    )


def _others(values: list[float]) -> list[float]:
    """For each value the median of the others. (A deviation from the median of all could never flag one of two.)"""
    return [statistics.median(values[:index] + values[index + 1 :]) for index in range(len(values))]
