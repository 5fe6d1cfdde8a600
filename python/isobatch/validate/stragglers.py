"""Whether a rank is slower than the others: all do the same work at once, in windows of time that can be compared."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from isobatch.validate.group import Group
from isobatch.validate.report import Proof, Verdict

FIRST, MOST = 5, 25  # windows, and where a rank looks slow
LEAST = 3  # repetitions in a window, unless fewer take LEAST_SECONDS
LEAST_SECONDS = 0.5
LIMIT_SECONDS = 15.0  # to look closer
CAUTION, FAIL = 1.25, 2.0  # times the median of the others
ALWAYS = 0.9  # the share of the windows in which a slow rank is slow


class Window(NamedTuple):
    """One window of one rank: seconds of a repetition on average, and the share of them in which the rank was ready to run
    and another process had the processor."""

    seconds: float
    waited: float


def window(group: Group, work: Callable[[], object], seconds: float) -> Window:
    """This rank's next window, begun together with the other ranks; inside of it none waits for another.

    A mean, not a median: what stops a rank for most of a time, and lets it run at full speed for the rest, is slow too.
    """
    group.barrier()
    waiting, begun, count = _waiting_seconds(), time.perf_counter(), 0
    while True:
        work()
        group.sync()
        count += 1
        took = time.perf_counter() - begun
        if took >= seconds and (count >= LEAST or took >= LEAST_SECONDS):
            break
    waited = _waiting_seconds() - waiting if group.device.type == "cpu" else 0.0
    return Window(took / count, min(0.95, waited / took))


def _waiting_seconds() -> float:
    """How long this process's threads, the one that waited most, were ready to run and did not, since they began; 0 where
    the system does not say."""
    waited = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            waited = max(waited, int(file.read_text().split()[1]))
    return waited / 1e9


def slower(values: list[float]) -> list[float]:
    """How many times each value is above the median of the others. (A deviation from the median of all could never flag one
    of two.)

    >>> slower([1.0, 1.0, 3.0])
    [0.5, 0.5, 3.0]
    """
    if len(values) < 2:
        return [1.0] * len(values)
    return [
        value / statistics.median(values[:index] + values[index + 1 :]) for index, value in enumerate(values)
    ]


def prove(
    group: Group, work: Callable[[], object], seconds: float, name: str, what: str
) -> tuple[Proof, list[list[Window]]]:
    """Measures some work in windows of so many seconds; where a rank looks slow, in many more. Gives the windows by rank."""
    if group.world_size == 1:
        mine = [window(group, work, seconds) for _ in range(FIRST)]
        proof = Proof(name=name, verdict=Verdict.UNCHECKED, text="one rank: nothing to compare with")
        return proof, [mine]
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
        proof = Proof(name=name, verdict=Verdict.UNCHECKED, text=text, values=proof.values)
    return proof, windows


def judge(windows: list[list[Window]], name: str, what: str, who: Callable[[int], str]) -> Proof:
    """What windows of all ranks say.

    A rank is slow where it is slower than the others' median in nine of ten windows, without the time in which it waited for
    a processor that others used. Whatever else looks slow is a host's noise, which comes and goes, or hits whoever is there.
    """
    ratios = _ratios([[w.seconds for w in row] for row in windows])
    typical = np.median(ratios, axis=0)
    slowest = int(typical.argmax())
    waited = [float(np.mean([w.waited for w in row])) for row in windows]
    values = {
        "times_median_of_others": typical.tolist(),
        "windows": len(ratios),
        "window_spread": [max(w.seconds for w in row) / min(w.seconds for w in row) for row in windows],
        "waited_share": waited,
    }
    if typical[slowest] < CAUTION:
        text = f"{what}: the slowest rank takes {typical[slowest]:.2f} × the median of the others"
        return Proof(name=name, verdict=Verdict.PASS, text=text, gate=CAUTION, values=values)
    own = _ratios([[w.seconds * (1 - w.waited) for w in row] for row in windows])
    slow = [rank for rank in range(len(windows)) if np.quantile(own[:, rank], 1 - ALWAYS) >= CAUTION]
    if slowest not in slow:
        return Proof(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            text=f"{what}: {who(slowest)} takes {typical[slowest]:.2f} × the median of the others in most windows, but not in "
            f"all, or waits for a processor ({waited[slowest]:.0%} of the time)",
            cause="the host is too noisy to tell",
            gate=CAUTION,
            values=values,
        )
    times = np.median(own, axis=0)
    named = ", ".join(f"{who(rank)} {times[rank]:.2f} ×" for rank in slow)
    return Proof(
        name=name,
        verdict=Verdict.FAIL if times[slowest] >= FAIL else Verdict.CAUTION,
        text=f"{what}: {named} the median of the others, in nine of ten windows at least {CAUTION} ×",
        cause=f"slow rank: {', '.join(who(rank) for rank in slow)}; every step waits for it",
        gate=CAUTION,
        values=values,
    )


def _ratios(seconds: list[list[float]]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """How many times each rank is above the median of the others, shape (windows, ranks)."""
    return np.array([slower(list(row)) for row in zip(*seconds, strict=True)])
