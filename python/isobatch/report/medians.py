"""The median of many jobs over GPU counts: always of the same jobs, else a line would join what cannot be compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.report.table import Plans
from isobatch.words import count, counted, printable

_MAX_POINTS = 200
"""GPU counts that a line has."""


class Median(NamedTuple):
    """A line: its name, its points, how many jobs it is of and how many there are, and the counts that are not drawn."""

    name: str
    points: list[dict[str, Any]]
    jobs: int
    of: int
    left_out: list[float]

    @property
    def described(self) -> str:
        """Describes the jobs behind the line."""
        jobs = f"{counted(self.jobs, 'job')}, which" if self.jobs == self.of else f"{counted(self.jobs, 'job')} of {count(self.of)} that"  # fmt: skip
        where = f"{jobs} can run at each of these {count(len(self.points))} counts"
        if not self.left_out:
            return where
        more = words.few([count(many) for many in self.left_out], 6)
        return f"{where} (not drawn, as not all of these can run there: {more})"


def medians(plans: Plans, name: str, most: int) -> list[Median]:
    """Computes a figure's median and the range of its middle 80 %, a line for each GPU type; of the `most` types with most rows."""
    types, kind = plans.gpu_types()
    _, job = plans.text("job")
    values = plans.spent(name)
    known = ~np.isnan(values)
    rows = np.bincount(kind[known], minlength=len(types))
    unknown = "GPUs of no known type" if len(types) > 1 else "median of the jobs"
    found = []
    for at in sorted(np.argsort(-rows, kind="stable")[:most].tolist()):
        own = np.flatnonzero(known & (kind == at))
        label = printable(types[at], 60) or unknown
        found.append(_line(label, name, job[own], plans.gpus[own], values[own]))
    return [line for line in found if line is not None]


def _line(
    label: str, name: str, job: NDArray[np.int64], gpus: NDArray[np.float64], values: NDArray[np.float64]
) -> Median | None:
    """Computes a line's points; None where no two counts have a job in common."""
    # Of several clusters with as many GPUs a job's least counts.
    order = np.lexsort((values, job, gpus))
    job, gpus, values = job[order], gpus[order], values[order]
    first = np.append(True, (job[1:] != job[:-1]) | (gpus[1:] != gpus[:-1]))[: len(job)]
    job, gpus, values = job[first], gpus[first], values[first]
    considered = at_most(np.unique(gpus).tolist())
    at = {
        many: slice(*(int(np.searchsorted(gpus, many, side)) for side in ("left", "right")))
        for many in considered
    }
    of = len(np.unique(job))
    drawn, same = _common({many: job[at[many]] for many in considered}, of)
    if len(drawn) < 2:
        return None
    points = []
    for many in drawn:
        own = values[at[many]][same[job[at[many]]]]
        low, middle, high = np.quantile(own, (0.1, 0.5, 0.9)).tolist()
        points.append({"job": label, "gpus": many, name: middle, "low": low, "high": high})
    return Median(label, points, int(same.sum()), of, [many for many in considered if many not in drawn])


def _common(jobs_at: dict[float, NDArray[np.int64]], of: int) -> tuple[list[float], NDArray[np.bool_]]:
    """Chooses the counts to draw, and the jobs with a run at all of them.

    Counts are taken in the order of how many jobs run there: the more of them, the fewer jobs run at all. Those are best at which
    counts × jobs is greatest, with at least half of the jobs where that can be.
    """
    size = max((int(each.max(initial=-1)) + 1 for each in jobs_at.values()), default=0)
    order = sorted(jobs_at, key=lambda many: (-len(jobs_at[many]), many))
    every, best = np.ones(size, bool), (False, 0, 0)
    chosen: tuple[list[float], NDArray[np.bool_]] = ([], np.zeros(size, bool))
    for number, many in enumerate(order, 1):
        every &= np.isin(np.arange(size), jobs_at[many])
        left = int(every.sum())
        rank = (2 * left >= of, number * left, left)
        if number > 1 and left and rank > best:
            best, chosen = rank, (sorted(order[:number]), every.copy())
    return chosen


def at_most(counts: list[float]) -> list[float]:
    """Thins counts to as many as a line shows, both ends among them."""
    if len(counts) <= _MAX_POINTS:
        return counts
    places = np.unique(np.rint(np.geomspace(1, len(counts), _MAX_POINTS)).astype(int) - 1)
    return [counts[place] for place in places]
