"""Hours and cost over GPU counts, and where each job is fastest, cheapest and at its knee: of a fleet and of a sweep."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.reason import Reason
from isobatch.report.charts import MAX_LINES, over_gpus
from isobatch.report.page import Drawing, Headline, HtmlTable, Section
from isobatch.report.table import Plans
from isobatch.words import count, counted, percent, printable

_MAX_POINTS = 200
"""GPU counts that a line has."""
_MAX_JOBS = 20
"""Jobs that the table of a page has."""
_MAX_ENDS = 4
"""Lines whose ends are written below a chart."""
_MAX_TYPES = 4
"""GPU types of which each has its own knee on a page."""


def times_known(plans: Plans) -> bool:
    """Tells whether any row has hours, with its GPUs."""
    return not np.isnan(plans.spent("hours")).all()


def how_sure(plans: Plans) -> str:
    """Says where hours and cost are estimates, with their interval where the table has it; a sentence after a space."""
    known = ~np.isnan(plans.number("hours"))
    estimated = known & plans.has(Reason.FORECAST_ESTIMATED)
    many = int(estimated.sum())
    if not many:
        return ""
    rows = "" if many == known.sum() else f" in {counted(many, 'row')} of {count(known.sum())}"
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (plans.number("step_error") / plans.number("step_seconds"))[estimated]
    share = share[np.isfinite(share)]
    interval = f": up to ±{percent(float(share.max()))} (95 % interval)" if share.size else ""
    return f" Hours and cost are estimates{rows}, not measured{interval}."


def time_section(plans: Plans, deadline: float | None, currency: str) -> list[Section]:
    """Draws hours and cost, with the figures at the ends and the knee of each job; nothing where no time is known."""
    if not times_known(plans):
        return []
    if not plans.compares and "gpus" not in plans.numbers:
        return [Section("Time and cost", tables=[_chosen(plans, currency)])]
    drawings = [
        drawing
        for name, label in (("hours", "hours"), ("cost", f"cost, {currency}"))
        if not np.isnan(plans.spent(name)).all()
        for drawing in _drawings(plans, name, label, deadline if name == "hours" else None)
    ]
    return [Section("Time and cost", drawings=drawings, tables=[_ends_table(plans, deadline, currency)])]


# ---- the knee: the GPU count of a job past which more GPUs cost more than they save ----


def knees(plans: Plans) -> dict[tuple[int, int], int]:
    """Finds the row of the least hours × GPU-hours: past it, 1 % less time costs more than 1 % more GPU-hours.

    By job and GPU type: an hour of one type is no hour of another. A job that runs on one number of GPUs only has no knee.
    """
    _, job = plans.text("job")
    types, kind = plans.gpu_types()
    with np.errstate(over="ignore"):
        product = plans.spent("hours") * plans.spent("gpu_hours")
    rows = np.flatnonzero(~np.isnan(product))
    group = job[rows] * len(types) + kind[rows]
    order = np.lexsort((product[rows], group))
    rows, group = rows[order], group[order]
    if not len(rows):
        return {}
    _, first = np.unique(group, return_index=True)
    gpus = plans.gpus[rows]
    several = np.minimum.reduceat(gpus, first) < np.maximum.reduceat(gpus, first)
    return {(int(job[row]), int(kind[row])): int(row) for row in rows[first[several]].tolist()}


def knee_of(plans: Plans) -> list[Headline]:
    """Names the knee of a single job, or of the middle one of several, on each GPU type; none where there are many types."""
    types, _ = plans.gpu_types()
    by_type: dict[int, list[float]] = {}
    for (_, kind), row in knees(plans).items():
        by_type.setdefault(kind, []).append(float(plans.gpus[row]))
    if len(by_type) > _MAX_TYPES:
        return []
    found = []
    for kind, counts in sorted(by_type.items()):
        note = "past it, more GPUs cost more than they save" + ("; the middle job" if len(counts) > 1 else "")
        middle = counted(sorted(counts)[len(counts) // 2], "GPU")
        found.append(Headline(_at_knee(types[kind]), middle, note))
    return found


def _at_knee(gpu_type: str) -> str:
    return f"knee on {printable(gpu_type, 30)}" if gpu_type else "knee"


# ---- the charts ----


def _drawings(plans: Plans, name: str, label: str, deadline: float | None) -> list[Drawing]:
    """Draws a figure over GPUs: a line for each job, of many the median."""
    jobs = _jobs(plans)
    if len(jobs) <= MAX_LINES:
        points, marked = _lines(plans, name, jobs), _marked(plans, name)
        what = "a line for each job" + (" and GPU type" if any(point["type"] for point in points) else "")
    else:
        lines, marked = medians(plans, name, MAX_LINES), []
        points = [point for line in lines for point in line.points]
        texts = [f"{line.name}: {line.described}" if len(lines) > 1 else line.described for line in lines]
        what = f"the median and the range of the middle 80 %, always of the same jobs: {'; '.join(texts)}"
        if len(lines) < len(plans.gpu_types()[0]) and len(lines) == MAX_LINES:
            what += f"; of the {MAX_LINES} GPU types with most rows"
    if not points:
        return []
    chart = over_gpus(points, name, printable(label), deadline=deadline, knees=marked)
    described = f"{name.capitalize()} over GPUs, both axes logarithmic: {what}; {_ends(points, name)}."
    return [Drawing(chart, f"{name.capitalize()} over GPUs", described)]


def _jobs(plans: Plans) -> list[int]:
    """Lists the jobs with known hours, in order of appearance."""
    _, job = plans.text("job")
    return list(dict.fromkeys(job[~np.isnan(plans.spent("hours"))].tolist()))


def _lines(plans: Plans, name: str, jobs: list[int]) -> list[dict[str, Any]]:
    """The figure over GPUs of each job on each GPU type; the least where several clusters have as many."""
    _, job = plans.text("job")
    types, kind = plans.gpu_types()
    gpus, values = plans.gpus, plans.spent(name)
    rows = []
    for at in jobs:
        for of in range(len(types)):
            own = np.flatnonzero((job == at) & (kind == of) & ~np.isnan(values))
            own = own[np.argsort(values[own], kind="stable")]
            counts, first = np.unique(gpus[own], return_index=True)
            shown = set(at_most(counts.tolist()))
            rows += [
                row for many, row in zip(counts.tolist(), own[first].tolist(), strict=True) if many in shown
            ]
    return _points(plans, name, rows)


def _marked(plans: Plans, name: str) -> list[dict[str, Any]]:
    """Returns the points of the knees."""
    known = ~np.isnan(plans.spent(name))
    return _points(plans, name, [row for row in knees(plans).values() if known[row]])


def _points(plans: Plans, name: str, rows: list[int]) -> list[dict[str, Any]]:
    types, kind = plans.gpu_types()
    # The type only where a chart has to tell several apart.
    of = [""] if len(types) < 2 else [printable(it, 60) or "unknown type" for it in types]
    gpus, values = plans.gpus[rows].tolist(), plans.spent(name)[rows].tolist()
    return [
        {"job": _called(plans, row), "type": of[kind[row]], "gpus": many, name: value}
        for row, many, value in zip(rows, gpus, values, strict=True)
    ]


def _called(plans: Plans, row: int) -> str:
    names, job = plans.text("job")
    return printable(names[job[row]] or "the job", 60)


def _ends(points: list[dict[str, Any]], name: str) -> str:
    """Each line's figure at its own ends: those of two jobs are no course of either."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        called = f"{point['job']} on {point['type']}" if point.get("type") else point["job"]
        lines.setdefault(called, []).append(point)
    texts = []
    for job, course in lines.items():
        course.sort(key=lambda it: it["gpus"])
        ends = course if len(course) == 1 else (course[0], course[-1])
        at = ", ".join(f"{words.figure(it[name])} on {counted(it['gpus'], 'GPU')}" for it in ends)
        texts.append(at if len(lines) == 1 else f"{job} {at}")
    more = f"; and {count(len(texts) - _MAX_ENDS)} more" if len(texts) > _MAX_ENDS else ""
    return "; ".join(texts[:_MAX_ENDS]) + more


# ---- the median of many jobs: always of the same, else a line would join what cannot be compared ----


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


# ---- the tables ----


def _where(plans: Plans, row: int) -> str:
    """A row's GPUs with their type, and its cluster: other clusters have as many."""
    types, kind = plans.gpu_types()
    gpu, many = types[kind[row]], counted(plans.gpus[row], "GPU")
    names, at = plans.text("cluster")
    name = names[at[row]] or ""
    if not name:
        return many
    if gpu and gpu.lower() not in name.lower():
        many = many.replace("GPU", f"{printable(gpu, 20)} GPU")
    return f"{many} on {f'cluster {name}' if name.isdecimal() else printable(name, 40)}"


def _ends_table(plans: Plans, deadline: float | None, currency: str) -> HtmlTable:
    _, job = plans.text("job")
    types, _ = plans.gpu_types()
    hours, work, cost = plans.spent("hours"), plans.spent("gpu_hours"), plans.spent("cost")

    def cell(row: int) -> str:
        price = "" if np.isnan(cost[row]) else f", {words.price(cost[row], currency)}"
        return f"{_where(plans, row)}, {words.duration(hours[row] * 3600)}{price}"

    jobs, marks = _jobs(plans), knees(plans)
    kinds = sorted({kind for _, kind in marks})
    kinds = kinds if len(kinds) <= _MAX_TYPES else []
    rows = []
    for at in jobs[:_MAX_JOBS]:
        own = np.flatnonzero((job == at) & ~np.isnan(hours))
        priced = cost if not np.isnan(cost[own]).all() else work
        line = [_called(plans, own[0]), cell(int(own[np.argmin(hours[own])])), cell(_least(priced, own))]
        line += [cell(marks[at, of]) if (at, of) in marks else "" for of in kinds]
        if deadline is not None:
            in_time = own[(hours[own] <= deadline) & ~np.isnan(priced[own])]
            line.append(cell(_least(priced, in_time)) if len(in_time) else "none of these")
        rows.append(line)
    is_priced = not np.isnan(cost).all()
    least = "cheapest" if is_priced else "fewest GPU-hours"
    headers = ["fastest", least, *(_at_knee(types[of]) for of in kinds)]
    headers += [f"{least} within the deadline"] if deadline else []
    takes = "cheapest" if is_priced else "it takes the fewest GPU-hours"
    caption = f"Where each job is fastest, where {takes}{', and at its knee' if kinds else ''}"
    return HtmlTable(
        f"{caption}{_first_of(len(jobs))}", {"job": "text", **dict.fromkeys(headers, "parts")}, rows
    )


def _least(values: NDArray[np.float64], rows: NDArray[np.int64]) -> int:
    return int(rows[np.nanargmin(values[rows])])


def _first_of(jobs: int) -> str:
    return f" (the first {_MAX_JOBS} of {count(jobs)} jobs)" if jobs > _MAX_JOBS else ""


def _chosen(plans: Plans, currency: str) -> HtmlTable:
    """Tables each job's own row, where there is nothing to compare it with."""
    _, job = plans.text("job")
    hours, work, cost = plans.spent("hours"), plans.spent("gpu_hours"), plans.spent("cost")
    jobs = _jobs(plans)
    rows = []
    for at in jobs[:_MAX_JOBS]:
        row = int(np.argmax((job == at) & ~np.isnan(hours)))
        price = "" if np.isnan(cost[row]) else words.price(cost[row], currency)
        took = words.duration(hours[row] * 3600)
        rows.append([_called(plans, row), _where(plans, row), took, words.figure(work[row]), price])
    columns = {"job": "text", "where": "text", "time": "number", "GPU-hours": "number", "cost": "number"}
    row_of = "The best row of each job" if plans.provenance.top > 1 else "The row of each job"
    return HtmlTable(f"{row_of}{_first_of(len(jobs))}", columns, rows)
