"""The middle of many jobs over GPU counts: always of the same jobs, else a line would join what cannot be compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.report.knees import gpus_of
from isobatch.report.plans import Plans
from isobatch.words import count, counted, printable

MOST_POINTS = 200
"""GPU counts that a line has."""


class Middle(NamedTuple):
    """A line: its name, its points, how many jobs it is of and how many there are, and the counts that are not drawn."""

    name: str
    points: list[dict[str, Any]]
    jobs: int
    of: int
    left_out: list[float]

    @property
    def said(self) -> str:
        """What the line is of."""
        counts = len(self.points)
        where = f"{counted(self.jobs, 'job')} of {count(self.of)} that can run at each of these {count(counts)} counts"
        if self.jobs == self.of:
            where = f"{counted(self.jobs, 'job')}, which can run at each of these {count(counts)} counts"
        return f"{where}{self._rest}"

    @property
    def _rest(self) -> str:
        if not self.left_out:
            return ""
        more = words.few([count(many) for many in self.left_out], 6)
        return f" (not drawn, as not all of these can run there: {more})"


def middles(plans: Plans, name: str, most: int) -> list[Middle]:
    """A figure's median and the range of its middle 80 %, a line for each GPU type: of the types with most rows, at most so many."""
    types, kind = plans.gpu_types()
    _, job = plans.text("job")
    gpus, values = gpus_of(plans), plans.spent(name)
    known = ~np.isnan(values)
    rows = np.bincount(kind[known], minlength=len(types))
    found = []
    for at in sorted(np.argsort(-rows, kind="stable")[:most].tolist()):
        own = np.flatnonzero(known & (kind == at))
        label = printable(types[at], 60) or (
            "GPUs of no known type" if len(types) > 1 else "median of the jobs"
        )
        line = _line(label, name, job[own], gpus[own], values[own])
        found += [] if line is None else [line]
    return found


def _line(
    label: str, name: str, job: NDArray[np.int64], gpus: NDArray[np.float64], values: NDArray[np.float64]
) -> Middle | None:
    """A line's points; None where no two counts have a job in common."""
    # Of several clusters with as many GPUs a job's least counts.
    order = np.lexsort((values, job, gpus))
    job, gpus, values = job[order], gpus[order], values[order]
    first = np.ones(len(job), bool)
    first[1:] = (job[1:] != job[:-1]) | (gpus[1:] != gpus[:-1])
    job, gpus, values = job[first], gpus[first], values[first]
    counts, starts = np.unique(gpus, return_index=True)
    ends = [*starts[1:].tolist(), len(gpus)]
    at = {
        many: slice(start, end)
        for many, start, end in zip(counts.tolist(), starts.tolist(), ends, strict=True)
    }
    of = len(np.unique(job))
    looked_at = some(counts.tolist())
    drawn, same = _common({many: job[at[many]] for many in looked_at}, of)
    if len(drawn) < 2:
        return None
    points = []
    for many in drawn:
        own = values[at[many]][same[job[at[many]]]]
        low, middle, high = np.quantile(own, (0.1, 0.5, 0.9)).tolist()
        points.append({"job": label, "gpus": many, name: middle, "low": low, "high": high})
    return Middle(label, points, int(same.sum()), of, [many for many in looked_at if many not in set(drawn)])


def _common(jobs_at: dict[float, NDArray[np.int64]], of: int) -> tuple[list[float], NDArray[np.bool_]]:
    """The counts that are drawn, and which jobs run at all of them.

    Counts are taken in the order of how many jobs run there: the more of them, the fewer jobs run at all. Those are best at which
    counts × jobs is greatest, with at least half of the jobs where that can be.
    """
    size = max((int(each.max(initial=-1)) + 1 for each in jobs_at.values()), default=0)
    order = sorted(jobs_at, key=lambda many: (-len(jobs_at[many]), many))
    every, best = np.ones(size, bool), (False, 0, 0)
    chosen: tuple[list[float], NDArray[np.bool_]] = ([], np.zeros(size, bool))
    for taken, many in enumerate(order, 1):
        here = np.zeros(size, bool)
        here[jobs_at[many]] = True
        every &= here
        left = int(every.sum())
        rank = (2 * left >= of, taken * left, left)
        if taken > 1 and left and rank > best:
            best, chosen = rank, (sorted(order[:taken]), every.copy())
    return chosen


def some(counts: list[float]) -> list[float]:
    """At most as many counts as a line shows, both ends among them."""
    if len(counts) <= MOST_POINTS:
        return counts
    places = np.unique(np.rint(np.geomspace(1, len(counts), MOST_POINTS)).astype(int) - 1)
    return [counts[place] for place in places]
