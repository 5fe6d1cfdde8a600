"""Hours and cost over GPU counts, the knee and the deadline: of a fleet and of a sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.reason import Reason
from isobatch.report.page import Drawing, Headline, Section, Table
from isobatch.report.plans import Plans
from isobatch.words import count, counted, percent, printable

_MOST_POINTS = 200
"""GPU counts that a line has."""

_MOST_SAID = 4
"""Lines whose ends are written below a chart."""


def times_known(plans: Plans) -> bool:
    """Whether any row has hours, and the GPUs that they are of."""
    return not np.isnan(plans.spent("hours")).all()


def how_sure(plans: Plans) -> str:
    """That hours and cost are estimates, where they are, and their interval where the table has it; a sentence after a space."""
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


def gpus_of(plans: Plans) -> NDArray[np.float64]:
    """The GPU count of each row."""
    return plans.numbers["gpus"] if "gpus" in plans.numbers else plans.number("world_size")


def knees(plans: Plans) -> dict[int, int]:
    """The row of each job at which hours × GPU-hours is least: past it, 1 % less time costs more than 1 % more GPU-hours."""
    _, job = plans.text("job")
    with np.errstate(over="ignore"):
        product = plans.spent("hours") * plans.spent("gpu_hours")
    best: dict[int, int] = {}
    for row in np.flatnonzero(~np.isnan(product)).tolist():
        at = int(job[row])
        if at not in best or product[row] < product[best[at]]:
            best[at] = row
    return best


def knee_of(plans: Plans) -> list[Headline]:
    """The knee of a single job, or of the middle one of several."""
    found = sorted(float(gpus_of(plans)[row]) for row in knees(plans).values())
    if not found:
        return []
    middle = found[len(found) // 2]
    note = "past it, more GPUs cost more than they save" + ("; the middle job" if len(found) > 1 else "")
    return [Headline("knee", counted(middle, "GPU"), note)]


def time_section(plans: Plans, deadline: float | None, currency: str) -> list[Section]:
    """Charts of hours and cost, and the figures at the ends and the knee of each job; none where no time is known."""
    if not times_known(plans):
        return []
    from isobatch.charts.times import MOST_LINES, over_gpus

    names, job = plans.text("job")
    jobs = list(dict.fromkeys(job[~np.isnan(plans.spent("hours"))].tolist()))
    drawings = []
    marks = knees(plans)
    for name, label in (("hours", "hours"), ("cost", f"cost, {currency}")):
        if np.isnan(plans.spent(name)).all():
            continue
        points = _lines(plans, name, jobs) if len(jobs) <= MOST_LINES else _middle(plans, name)
        marked = [
            {
                "job": _called(names[at]),
                "gpus": float(gpus_of(plans)[row]),
                name: float(plans.spent(name)[row]),
                "said": "knee",
            }
            for at, row in marks.items()
        ]
        chart = over_gpus(
            points,
            name,
            printable(label),
            deadline=deadline if name == "hours" else None,
            knees=marked if len(jobs) <= MOST_LINES else (),
        )
        what = (
            "a line for each job"
            if len(jobs) <= MOST_LINES
            else f"the median of {count(len(jobs))} jobs and the range of the middle 80 %, at each count of those that can run there"
        )
        described = f"{name.capitalize()} over GPUs, both axes logarithmic: {what}; {_ends(points, name)}."
        drawings.append(Drawing(chart, f"{name.capitalize()} over GPUs", described))
    return [
        Section("Time and cost", drawings=drawings, tables=[_table(plans, names, marks, deadline, currency)])
    ]


def _called(name: str | None) -> str:
    return printable(name or "the job", 60)


def _lines(plans: Plans, name: str, jobs: list[int]) -> list[dict[str, Any]]:
    """The figure over GPUs of each job; the least where several clusters have as many."""
    names, job = plans.text("job")
    gpus, values = gpus_of(plans), plans.spent(name)
    points = []
    for at in jobs:
        rows = (job == at) & ~np.isnan(values)
        least: dict[float, float] = {}
        for many, value in zip(gpus[rows].tolist(), values[rows].tolist(), strict=True):
            least[many] = min(value, least.get(many, np.inf))
        points += [
            {"job": _called(names[at]), "gpus": many, name: least[many]} for many in _some(sorted(least))
        ]
    return points


def _middle(plans: Plans, name: str) -> list[dict[str, Any]]:
    """The figure's median over all jobs, and the range of its middle 80 %, at each GPU count."""
    gpus, values = gpus_of(plans), plans.spent(name)
    known = ~np.isnan(values)
    points = []
    for many in _some(np.unique(gpus[known]).tolist()):
        low, middle, high = np.quantile(values[known & (gpus == many)], (0.1, 0.5, 0.9)).tolist()
        points.append({"job": "median of the jobs", "gpus": many, name: middle, "low": low, "high": high})
    return points


def _some(counts: list[float]) -> list[float]:
    """At most as many counts as a line shows, both ends among them."""
    if len(counts) <= _MOST_POINTS:
        return counts
    places = np.unique(np.rint(np.geomspace(1, len(counts), _MOST_POINTS)).astype(int) - 1)
    return [counts[place] for place in places]


def _ends(points: list[dict[str, Any]], name: str) -> str:
    """Each line's figure at its own ends: those of two jobs are no course of either."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        lines.setdefault(point["job"], []).append(point)
    said = []
    for job, course in lines.items():
        course.sort(key=lambda it: it["gpus"])
        ends = course if len(course) == 1 else (course[0], course[-1])
        at = ", ".join(f"{words.figure(it[name])} on {counted(it['gpus'], 'GPU')}" for it in ends)
        said.append(at if len(lines) == 1 else f"{job} {at}")
    more = f"; and {count(len(said) - _MOST_SAID)} more" if len(said) > _MOST_SAID else ""
    return "; ".join(said[:_MOST_SAID]) + more


def _table(
    plans: Plans, names: list[str | None], marks: dict[int, int], deadline: float | None, currency: str
) -> Table:
    _, job = plans.text("job")
    gpus, hours, work, cost = (
        gpus_of(plans),
        plans.spent("hours"),
        plans.spent("gpu_hours"),
        plans.spent("cost"),
    )

    def said(row: int) -> str:
        price = "" if np.isnan(cost[row]) else f", {words.price(cost[row], currency)}"
        return f"{counted(gpus[row], 'GPU')}, {words.duration(hours[row] * 3600)}{price}"

    rows = []
    for at, knee in list(marks.items())[:20]:
        own = np.flatnonzero((job == at) & ~np.isnan(hours))
        fastest = int(own[np.argmin(hours[own])])
        priced = cost if not np.isnan(cost[own]).all() else work
        cheapest = int(own[np.nanargmin(priced[own])])
        line = [_called(names[at]), said(fastest), said(cheapest), said(knee)]
        if deadline is not None:
            met = own[hours[own] <= deadline]
            line.append(said(int(met[np.nanargmin(work[met])])) if len(met) else "none of these")
        rows.append(line)
    headers = (
        "job",
        "fastest",
        "cheapest",
        "knee",
        *(("least GPU-hours within the deadline",) if deadline else ()),
    )
    more = f" (the first 20 of {count(len(marks))} jobs)" if len(marks) > 20 else ""
    caption = f"Where each job is fastest, cheapest, and at its knee{more}"
    return Table(caption, headers, rows, ("text",) * len(headers))
