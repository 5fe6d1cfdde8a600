"""Hours and cost over GPU counts, with the fastest, the cheapest and the knee, of a fleet or of one job."""

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np

from isobatch import words
from isobatch.fleet.comparison import compared, end_of, grows
from isobatch.reason import Reason
from isobatch.report.charts import MAX_LINES, Limit, by_cluster, over_gpus
from isobatch.report.page import Drawing, Headline, HtmlTable, Section
from isobatch.report.table import INFEASIBLE, Plans
from isobatch.report.within import Limits, best_within, missed, together
from isobatch.words import count, counted, figure, percent, printable

_MAX_POINTS = 200
"""GPU counts that a line has."""
_MAX_JOBS = 20
"""Jobs that the table of a page has."""
_MAX_ENDS = 4
"""Lines whose ends are written below a chart."""
_MAX_BARS = 40
"""Clusters that have a bar each."""


def left_out(plans: Plans, name: str) -> str:
    """Says how many rows a comparison by a figure leaves out, as it is not known there."""
    rows = int((np.isnan(plans.spent(name)) & (plans.status != INFEASIBLE)).sum())
    return f"; {counted(rows, 'row')} not compared: {name.replace('_', '-')} not known" if rows else ""


def times_known(plans: Plans) -> bool:
    """Tells whether any row has hours, with its GPUs."""
    return not np.isnan(plans.spent("hours")).all()


def how_sure(plans: Plans) -> str:
    """Writes the range of hours and cost, or its absence, and where they are estimates; after a space."""
    known = ~np.isnan(plans.number("hours"))
    if not known.any():
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (plans.number("hours_error") / plans.number("hours"))[known]
    share = share[np.isfinite(share)]
    interval = f"up to ±{percent(float(share.max()))} (95 % interval)" if share.size else "no range is known"
    many = int((known & plans.has(Reason.FORECAST_ESTIMATED)).sum())
    rows = "" if many in (0, known.sum()) else f" in {counted(many, 'row')} of {count(known.sum())}"
    return f" Hours and cost{f' are estimates{rows}, not measured' if many else ''}: {interval}."


def spent(plans: Plans, row: int, currency: str) -> str:
    """Writes a row's time and, if known, its cost, with their ranges."""
    hours, error, cost = plans.spent("hours"), plans.number("hours_error"), plans.spent("cost")
    return words.spent(float(hours[row]), float(error[row]), float(cost[row]), currency)


def time_section(plans: Plans, limits: Limits, currency: str) -> list[Section]:
    """Draws hours and cost with their limits, the ends and the knee of each job, if times are comparable."""
    if not times_known(plans) or not (plans.compares or "gpus" in plans.numbers):
        return []
    drawings = [
        (_bars if _coincide(plans, name) else _drawing)(plans, name, currency, limit)
        for name, limit in (("hours", ("deadline", limits.deadline)), ("cost", ("budget", limits.budget)))
        if not np.isnan(plans.spent(name)).all()
    ]
    return [Section("Time and cost", drawings=drawings, tables=[_ends_table(plans, limits, currency)])]


# ---- the knee: the GPU count of a job past which more GPUs cost more than they save ----


def knees(plans: Plans) -> dict[int, int]:
    """Finds each job's row of least hours × GPU-hours: past it 1 % less time costs over 1 % more GPU-hours.

    A job that runs on one number of GPUs only has no knee; nor has any where the clusters have several GPU
    types, since an hour of one is no hour of another; nor has one whose batch grows, and with it the samples
    to the same loss, which only `counts` knows.
    """
    if len(plans.gpu_types()[0]) > 1:
        return {}
    _, job = plans.text("job")
    is_counts = "gpus" in plans.numbers
    with np.errstate(over="ignore"):
        product = plans.spent("hours") * plans.spent("gpu_hours")
        if is_counts:
            known = ("effective_batch", "total_steps", "samples_over_least")
            of_job = {name: plans.spent(name) for name in ("hours", "gpu_hours")}
            product = compared(of_job | {name: plans.number(name) for name in known})
    rows = np.flatnonzero(~np.isnan(product))
    rows = rows[np.lexsort((product[rows], job[rows]))]
    if not len(rows):
        return {}
    _, first = np.unique(job[rows], return_index=True)
    gpus = plans.gpus[rows]
    several = np.minimum.reduceat(gpus, first) < np.maximum.reduceat(gpus, first)
    if not is_counts:
        several &= ~grows(plans.number("effective_batch")[rows], plans.number("total_steps")[rows], first)
    return {int(job[row]): int(row) for row in rows[first[several]].tolist()}


def knee_of(plans: Plans, limits: Limits) -> list[Headline]:
    """Names the knee of a single job, or of the middle one of several, and the limits missed there."""
    rows = sorted(knees(plans).values(), key=lambda row: float(plans.gpus[row]))
    if not rows:
        return []
    row = rows[len(rows) // 2]
    end = end_at(plans, row)
    note = f"the best trade of time for GPU-hours; {end}" if end else ""
    note = note or "past it, more GPUs cost more than they save"
    note += "; the middle job" if len(rows) > 1 else missed(plans, limits, row)
    return [Headline("knee", counted(plans.gpus[row], "GPU"), note)]


def end_at(plans: Plans, row: int) -> str:
    """Explains why the best row of a job may not be the best: nothing beyond it has hours."""
    _, job = plans.text("job")
    own = np.flatnonzero(job == job[row])
    at = int(np.flatnonzero(own == row)[0])
    return end_of(plans.gpus[own], plans.spent("hours")[own], plans.reasons[own], at)


# ---- the charts ----


def _drawing(plans: Plans, name: str, currency: str, limit: Limit) -> Drawing:
    """Draws a figure over GPUs, a line for each job and GPU type; of many, those with the most GPU-hours."""
    lines, alike = _lines(plans, name)
    points, many = [point for line in lines for point in line], sum(alike.values())
    drawn = {point["first"] for point in points}
    known = ~np.isnan(plans.spent(name))
    marked = [_point(plans, name, row) for row in knees(plans).values() if known[row]]
    marked = [knee for knee in marked if knee["job"] in drawn]
    chart = over_gpus(points, name, _axis(name, currency), limit=limit, knees=marked)
    drawn_lines = "a line for each job" + (" and GPU type" if len(plans.gpu_types()[0]) > 1 else "")
    is_counts = "gpus" in plans.numbers
    drawn_lines = "" if is_counts else f": {drawn_lines}"
    if len(alike) > len(lines):
        drawn_lines += f", the {len(lines)} of {count(len(alike))} that take the most GPU-hours"
    if many > len(alike):
        drawn_lines += f" ({count(many)} lines, equal ones drawn as one)"
    described = f"{name.capitalize()} by number of GPUs (log scales){drawn_lines}; "
    described += f"{_ends(lines, name, currency)}."
    described += " The band is the 95 % interval." if _ranges(points) else ""
    ends = (points[0]["gpus"], points[-1]["gpus"]) if is_counts else None
    return Drawing(chart, f"{name.capitalize()} over GPUs", described, ends)


def _bars(plans: Plans, name: str, currency: str, limit: Limit) -> Drawing:
    """Draws a figure by cluster, where over GPUs several clusters would fall on one dot."""
    _, job = plans.text("job")
    values, work = plans.spent(name), plans.spent("gpu_hours")
    rows = np.flatnonzero(~np.isnan(values))
    rows = rows[np.argsort(values[rows], kind="stable")]
    jobs = sorted(dict.fromkeys(job[rows].tolist()), key=lambda at: -float(np.nanmin(work[job == at])))
    points = [
        _point(plans, name, row) | {"job": _called(plans, row)}
        for at in jobs[:MAX_LINES]
        for row in rows[job[rows] == at].tolist()
    ]
    chart = by_cluster(points, name, _axis(name, currency), limit=limit)
    first = points[0]
    least = f"least for {first['job']}: {_amount(name, first[name], currency)} on {first['cluster']}"
    described = f"{name.capitalize()} by cluster, of each job"
    if len(jobs) > MAX_LINES:
        described += f", of the {MAX_LINES} of {count(len(jobs))} that take the most GPU-hours"
    described += f"; {least}.{' The thin line is the 95 % interval.' if _ranges(points) else ''}"
    return Drawing(chart, f"{name.capitalize()} by cluster", described)


def _axis(name: str, currency: str) -> str:
    return printable(f"{name}, {currency}" if name == "cost" else name)


def _amount(name: str, value: float, currency: str) -> str:
    return words.price(value, currency) if name == "cost" else figure(value)


def _ranges(points: list[dict[str, Any]]) -> bool:
    return any(point["low"] < point["high"] for point in points)


def _coincide(plans: Plans, name: str) -> bool:
    """Tells whether over GPUs at least half of the known rows would be hidden by others."""
    clusters, _ = plans.text("cluster")
    if "cluster" not in plans.texts or len(clusters) > _MAX_BARS:
        return False
    known = ~np.isnan(plans.spent(name))
    kind = plans.gpu_types()[1]
    dots = np.unique(np.stack([plans.text("job")[1], kind, plans.gpus])[:, known], axis=1)
    return bool(2 * dots.shape[1] <= known.sum())


def _lines(plans: Plans, name: str) -> tuple[list[list[dict[str, Any]]], Counter[Any]]:
    """Returns the points of jobs on each GPU type, most GPU-hours first, and how often each line is there.

    Where several clusters have as many GPUs a job's least counts. Equal lines are one, of the first job.
    """
    _, job = plans.text("job")
    types, kind = plans.gpu_types()
    gpus, values, work = plans.gpus, plans.spent(name), plans.spent("gpu_hours")
    rows = np.flatnonzero(~np.isnan(values))
    line = job * len(types) + kind
    rows = rows[np.lexsort((values[rows], gpus[rows], line[rows]))]
    lines = np.split(rows, np.flatnonzero(np.diff(line[rows])) + 1)
    lines.sort(key=lambda own: -float(work[own].min()))
    firsts, alike = dict[Any, Any](), Counter[Any]()
    for own in lines:
        key = (int(kind[own[0]]), gpus[own].tobytes(), values[own].tobytes())
        firsts.setdefault(key, own)
        alike[key] += 1
    points = []
    for key, own in islice(firsts.items(), MAX_LINES):
        _, first = np.unique(gpus[own], return_index=True)
        more = f" and {count(alike[key] - 1)} more" if alike[key] > 1 else ""
        drawn = [_point(plans, name, row) for row in at_most(own[first].tolist())]
        points.append([point | {"job": f"{point['job']}{more}", "first": point["job"]} for point in drawn])
    return points, alike


def _point(plans: Plans, name: str, row: int) -> dict[str, Any]:
    """Returns a row's figure with its range."""
    types, kind = plans.gpu_types()
    on = f" on {printable(types[kind[row]], 30) or 'unknown GPUs'}" if len(types) > 1 else ""
    value, hours = float(plans.spent(name)[row]), float(plans.spent("hours")[row])
    share = float(plans.number("hours_error")[row]) / hours if hours else 0.0
    share = share if share > 0 else 0.0
    clusters, at = plans.text("cluster")
    return {
        "job": f"{_called(plans, row)}{on}",
        "cluster": printable(clusters[at[row]] or "(none)", 40),
        "gpus": float(plans.gpus[row]),
        name: value,
        "low": value * max(0.1, 1 - share),  # a logarithmic axis has no 0
        "high": value * (1 + share),
    }


def _called(plans: Plans, row: int) -> str:
    names, job = plans.text("job")
    return printable(names[job[row]] or "the job", 60)


def _ends(lines: list[list[dict[str, Any]]], name: str, currency: str) -> str:
    """Each line's figure at its own ends: those of two jobs are no course of either."""
    texts = []
    for line in lines[:_MAX_ENDS]:
        ends = line if len(line) == 1 else (line[0], line[-1])
        at = ", ".join(
            f"{_amount(name, point[name], currency)} on {counted(point['gpus'], 'GPU')}" for point in ends
        )
        texts.append(at if len(lines) == 1 else f"{line[0]['job']} {at}")
    more = f"; and {count(len(lines) - _MAX_ENDS)} more" if len(lines) > _MAX_ENDS else ""
    return "; ".join(texts) + more


def at_most(rows: list[int]) -> list[int]:
    """Thins rows to as many points as a line shows, both ends among them."""
    if len(rows) <= _MAX_POINTS:
        return rows
    places = np.unique(np.rint(np.geomspace(1, len(rows), _MAX_POINTS)).astype(int) - 1)
    return [rows[place] for place in places]


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


def _ends_table(plans: Plans, limits: Limits, currency: str) -> HtmlTable:
    _, job = plans.text("job")
    hours, work, cost = plans.spent("hours"), plans.spent("gpu_hours"), plans.spent("cost")

    def cell(row: int) -> str:
        return f"{_where(plans, row)}, {spent(plans, row, currency)}{missed(plans, limits, row)}"

    jobs, marks = list(dict.fromkeys(job[~np.isnan(hours)].tolist())), knees(plans)
    judged, rows = together(plans, limits) if limits.names() else [], []
    for at in jobs[:_MAX_JOBS]:
        own = np.flatnonzero((job == at) & ~np.isnan(hours))
        priced = cost if not np.isnan(cost[own]).all() else work
        line = [_called(plans, own[0])] if "job" in plans.texts else []
        line += [cell(int(own[np.nanargmin(values[own])])) for values in (hours, priced)]
        if marks:
            line.append(cell(marks[at]) if at in marks else "")
        if judged:
            row, note = best_within(own[~np.isnan(priced[own])], priced, judged)
            line.append("none of these" if row is None else cell(row) + note)
        rows.append(line)
    is_priced = not np.isnan(cost).all()
    least = "cheapest" if is_priced else "fewest GPU-hours"
    headers = ["fastest", least, *(["at the knee"] if marks else [])]
    headers += [f"{least} within {limits.names()}"] if judged else []
    takes = "cheapest" if is_priced else "it takes the fewest GPU-hours"
    more = f" (the first {_MAX_JOBS} of {count(len(jobs))} jobs)" if len(jobs) > _MAX_JOBS else ""
    named = {"job": "text"} if "job" in plans.texts else {}
    caption = f"Where {'each' if named else 'the'} job is fastest, where {takes}"
    caption += ", and at its knee: the best trade of time for GPU-hours" if marks else ""
    return HtmlTable(f"{caption}{more}", named | dict.fromkeys(headers, "parts"), rows)
