"""Hours and cost over GPU counts, and where each job is fastest, cheapest and at its knee: of a fleet and of a sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.reason import Reason
from isobatch.report.knees import MOST_TYPES, gpus_of, knees
from isobatch.report.middle import middles, some
from isobatch.report.page import Drawing, Section, Table
from isobatch.report.plans import Plans
from isobatch.words import count, counted, percent, printable

_MOST_JOBS = 20
"""Jobs that the table of a page has."""

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


def time_section(plans: Plans, deadline: float | None, currency: str) -> list[Section]:
    """Charts of hours and cost, and the figures at the ends and the knee of each job; none where no time is known."""
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
    return [Section("Time and cost", drawings=drawings, tables=[_table(plans, deadline, currency)])]


def _drawings(plans: Plans, name: str, label: str, deadline: float | None) -> list[Drawing]:
    """The chart of a figure over GPUs: a line for each job, of many the middle."""
    from isobatch.charts.times import MOST_LINES, over_gpus

    jobs = _jobs(plans)
    if len(jobs) <= MOST_LINES:
        points = _lines(plans, name, jobs)
        what = "a line for each job" + (" and GPU type" if any(point["type"] for point in points) else "")
        marked = _marked(plans, name)
    else:
        lines, marked = middles(plans, name, MOST_LINES), []
        points = [point for line in lines for point in line.points]
        said = [f"{line.name}: {line.said}" if len(lines) > 1 else line.said for line in lines]
        what = f"the median and the range of the middle 80 %, always of the same jobs: {'; '.join(said)}"
        if len(lines) < len(plans.gpu_types()[0]) and len(lines) == MOST_LINES:
            what += f"; of the {MOST_LINES} GPU types with most rows"
    if not points:
        return []
    chart = over_gpus(points, name, printable(label), deadline=deadline, knees=marked)
    described = f"{name.capitalize()} over GPUs, both axes logarithmic: {what}; {_ends(points, name)}."
    return [Drawing(chart, f"{name.capitalize()} over GPUs", described)]


def _jobs(plans: Plans) -> list[int]:
    """The jobs of which hours are known, in the order in which they come."""
    _, job = plans.text("job")
    return list(dict.fromkeys(job[~np.isnan(plans.spent("hours"))].tolist()))


def _called(name: str | None) -> str:
    return printable(name or "the job", 60)


def _typed(plans: Plans, kind: int) -> str:
    """A GPU type where a chart has to tell several apart."""
    types, _ = plans.gpu_types()
    return "" if len(types) < 2 else printable(types[kind], 60) or "unknown type"


def _lines(plans: Plans, name: str, jobs: list[int]) -> list[dict[str, Any]]:
    """The figure over GPUs of each job on each GPU type; the least where several clusters have as many."""
    names, job = plans.text("job")
    types, kind = plans.gpu_types()
    gpus, values = gpus_of(plans), plans.spent(name)
    points = []
    for at in jobs:
        for of in range(len(types)):
            rows = (job == at) & (kind == of) & ~np.isnan(values)
            least: dict[float, float] = {}
            for many, value in zip(gpus[rows].tolist(), values[rows].tolist(), strict=True):
                least[many] = min(value, least.get(many, np.inf))
            points += [
                {"job": _called(names[at]), "type": _typed(plans, of), "gpus": many, name: least[many]}
                for many in some(sorted(least))
            ]
    return points


def _marked(plans: Plans, name: str) -> list[dict[str, Any]]:
    """The points at which the knees are."""
    names, _ = plans.text("job")
    gpus, values = gpus_of(plans), plans.spent(name)
    return [
        {
            "job": _called(names[at]),
            "type": _typed(plans, kind),
            "gpus": float(gpus[row]),
            name: float(values[row]),
            "said": "knee",
        }
        for (at, kind), row in knees(plans).items()
        if not np.isnan(values[row])
    ]


def _ends(points: list[dict[str, Any]], name: str) -> str:
    """Each line's figure at its own ends: those of two jobs are no course of either."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        called = f"{point['job']} on {point['type']}" if point.get("type") else point["job"]
        lines.setdefault(called, []).append(point)
    said = []
    for job, course in lines.items():
        course.sort(key=lambda it: it["gpus"])
        ends = course if len(course) == 1 else (course[0], course[-1])
        at = ", ".join(f"{words.figure(it[name])} on {counted(it['gpus'], 'GPU')}" for it in ends)
        said.append(at if len(lines) == 1 else f"{job} {at}")
    more = f"; and {count(len(said) - _MOST_SAID)} more" if len(said) > _MOST_SAID else ""
    return "; ".join(said[:_MOST_SAID]) + more


def _where(plans: Plans, row: int) -> str:
    """A row's GPUs with their type, and its cluster: other clusters have as many."""
    types, kind = plans.gpu_types()
    gpu = types[kind[row]]
    many = counted(gpus_of(plans)[row], "GPU")
    if "cluster" not in plans.texts:
        return many
    names, at = plans.text("cluster")
    name = names[at[row]] or ""
    if gpu and gpu.lower() not in name.lower():
        many = many.replace("GPU", f"{printable(gpu, 20)} GPU")
    called = f"cluster {name}" if name.isdecimal() else printable(name, 40)
    return f"{many} on {called}" if name else many


def _table(plans: Plans, deadline: float | None, currency: str) -> Table:
    names, job = plans.text("job")
    types, _ = plans.gpu_types()
    hours, work, cost = plans.spent("hours"), plans.spent("gpu_hours"), plans.spent("cost")

    def said(row: int) -> str:
        price = "" if np.isnan(cost[row]) else f", {words.price(cost[row], currency)}"
        return f"{_where(plans, row)}, {words.duration(hours[row] * 3600)}{price}"

    jobs, marks = _jobs(plans), knees(plans)
    kinds = sorted({kind for _, kind in marks})
    kinds = kinds if len(kinds) <= MOST_TYPES else []
    is_priced = not np.isnan(cost).all()
    rows = []
    for at in jobs[:_MOST_JOBS]:
        own = np.flatnonzero((job == at) & ~np.isnan(hours))
        priced = cost if not np.isnan(cost[own]).all() else work
        line = [_called(names[at]), said(int(own[np.argmin(hours[own])])), said(_least(priced, own))]
        line += [said(marks[at, of]) if (at, of) in marks else "" for of in kinds]
        if deadline is not None:
            met = own[(hours[own] <= deadline) & ~np.isnan(priced[own])]
            line.append(said(_least(priced, met)) if len(met) else "none of these")
        rows.append(line)
    least = "cheapest" if is_priced else "fewest GPU-hours"
    headers = (
        "job",
        "fastest",
        least,
        *(f"knee on {printable(types[of], 30)}" if types[of] else "knee" for of in kinds),
        *((f"{least} within the deadline",) if deadline else ()),
    )
    at_knee = ", and at its knee" if kinds else ""
    caption = f"Where each job is fastest, where {'cheapest' if is_priced else 'it takes the fewest GPU-hours'}{at_knee}"
    return Table(
        f"{caption}{_first_of(len(jobs))}", headers, rows, ("text", *("parts",) * (len(headers) - 1))
    )


def _least(values: NDArray[np.float64], rows: NDArray[np.int64]) -> int:
    return int(rows[np.nanargmin(values[rows])])


def _first_of(jobs: int) -> str:
    return f" (the first {_MOST_JOBS} of {count(jobs)} jobs)" if jobs > _MOST_JOBS else ""


def _chosen(plans: Plans, currency: str) -> Table:
    """What each job's own row takes, where there is nothing to compare it with."""
    names, job = plans.text("job")
    hours, work, cost = plans.spent("hours"), plans.spent("gpu_hours"), plans.spent("cost")
    jobs = _jobs(plans)
    rows = []
    for at in jobs[:_MOST_JOBS]:
        row = int(np.argmax((job == at) & ~np.isnan(hours)))
        price = "" if np.isnan(cost[row]) else words.price(cost[row], currency)
        took = words.duration(hours[row] * 3600)
        rows.append([_called(names[at]), _where(plans, row), took, words.figure(work[row]), price])
    row_of = "The best row of each job" if plans.made.top > 1 else "The row of each job"
    headers, kinds = (
        ("job", "where", "time", "GPU-hours", "cost"),
        ("text", "text", "number", "number", "number"),
    )
    return Table(f"{row_of}{_first_of(len(jobs))}", headers, rows, kinds)
