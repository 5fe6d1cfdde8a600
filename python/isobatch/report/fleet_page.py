"""The page of a fleet: its sums, where each job can run, and why not elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.reason import Reason
from isobatch.report import charts, times
from isobatch.report.levels import LEVELS
from isobatch.report.page import Drawing, Headline, HtmlPage, HtmlTable, Section
from isobatch.report.table import INFEASIBLE, Plans, plans_of, rows_of
from isobatch.report.within import Limits, jobs_within
from isobatch.words import count, counted, duration, few, figure, percent, price, printable, ranged

_ALONE = (
    " Each job is planned as if it had its cluster to itself: isobatch allocate divides a pool over jobs."
)
_MAX_NAMED = 40
"""Jobs that a row of the jobs without a plan names."""
_MAX_GRID_ROWS, _MAX_GRID_COLUMNS = 60, 40


def fleet_page(
    table: Any,
    *,
    title: str | None = None,
    file: str | None = None,
    deadline: float | None = None,
    currency: str = "$",
) -> HtmlPage:
    """Makes the page of a fleet's plans: what `plan_fleet` gave, or a table that it was written to."""
    plans = plans_of(table, file)
    deadline = plans.deadline if deadline is None else deadline
    headings = {"hours_error": "± hours (95 %)", "cost": f"cost, {currency}"}
    sections = [
        *times.time_section(plans, Limits(deadline), currency),
        *(_map(plans) or _by_cluster(plans)),
        *_reasons(plans),
        *_jobs_without_plan(plans),
        Section("All rows", tables=[rows_of(plans, "row", file, headings=headings)]),
    ]
    lead = (
        _lead(plans)
        + times.how_sure(plans)
        + _of_memory(plans)
        + _already_chosen(plans)
        + _of_model(plans)
        + _ALONE
    )
    headlines = _headlines(plans, currency, deadline)
    return HtmlPage(title or _answer(plans, headlines), lead, headlines, sections)


def _answer(plans: Plans, headlines: Sequence[Headline]) -> str:
    """Writes the heading: the count of jobs with a plan, or within the deadline, and their cost."""
    _, job = plans.text("job")
    good, jobs = len(np.unique(job[plans.status != INFEASIBLE])), len(np.unique(job))
    text = f"{count(good)} of {counted(jobs, 'job')} can be planned"
    figures = {each.label: each.value for each in headlines}
    if "deadline met" in figures:
        text += f", {figures['deadline met']} within the deadline"
    if "cost" in figures:
        priced = len(np.unique(job[~np.isnan(plans.spent("cost"))]))
        text += f", {f'{count(priced)} of them ' if priced < good else ''}for {figures['cost']}"
    return text


# ---- the first lines ----


def _lead(plans: Plans) -> str:
    """Says how many rows can be planned, and why most others cannot."""
    good = int((plans.status != INFEASIBLE).sum())
    if good == plans.rows:
        return f"All {counted(plans.rows, 'row')} can be planned."
    many = {each: int(plans.has(each).sum()) for each in Reason if each.severity == "infeasible"}
    worst = max(many, key=lambda reason: many[reason])
    why = f" Most often in the way: {worst.text} ({counted(many[worst], 'row')})." if many[worst] else ""
    share = percent(good / plans.rows)
    return f"{count(good)} of {counted(plans.rows, 'row')} can be planned ({share}).{why}"


def _of_model(plans: Plans) -> str:
    """Names the model and the GPUs of the times, and counts the rows without; a sentence after a space."""
    many, models = (
        int(plans.has(Reason.OTHER_HARDWARE).sum()),
        [*dict.fromkeys(filter(None, plans.provenance.profiles))],
    )
    of = printable("; ".join(models))
    gpus = (
        f" on {few(sorted({*plans.provenance.gpu_types.values()}), 3)}" if plans.provenance.gpu_types else ""
    )
    if models and many:
        return f" {counted(many, 'row')} have no times by the profile, which is of {of}{gpus}."
    return f" Times of {of}{gpus}." if models and times.times_known(plans) else ""


def _of_memory(plans: Plans) -> str:
    """Counts the rows with times and without memory; a sentence after a space."""
    unknown = int((~np.isnan(plans.spent("hours")) & np.isnan(plans.number("memory_gib"))).sum())
    is_read = {"micro_batch", "memory_gib"} <= plans.numbers.keys()
    return f" Whether {counted(unknown, 'row')} fit in memory is not known." if unknown and is_read else ""


def _already_chosen(plans: Plans) -> str:
    """Warns of a table of chosen rows, without the others of a job; a sentence after a space."""
    if plans.compares:
        return ""
    select, top = plans.provenance.select, plans.provenance.top
    how = "Each job has one row"
    if select not in (None, "all"):
        how = f"--select {printable(select, 40)} kept {counted(top, 'row')} of each job"
    return (
        f" {how}. A knee, and where a job is fastest or cheapest, need a table of all rows, of several "
        "clusters."
    )


def _headlines(plans: Plans, currency: str, deadline: float | None) -> list[Headline]:
    jobs, clusters = (
        len(np.unique(plans.texts[column][1])) if column in plans.texts else 0
        for column in ("job", "cluster")
    )
    works = plans.status != INFEASIBLE
    planned = len(np.unique(plans.text("job")[1][works]))
    rows = f"{count(works.sum())} of {counted(plans.rows, 'row')}"
    headlines = [
        Headline("jobs", count(jobs), f"on {counted(clusters, 'cluster')}" if clusters else ""),
        Headline("jobs with a plan", count(planned), rows) if jobs else Headline("feasible rows", rows),
    ]
    if not times.times_known(plans):
        return [*headlines, Headline("GPU-hours", "unknown", _why_unknown(plans))]
    fewest, cheapest = "each job where it needs the fewest", "each job where it is cheapest"
    if not plans.compares:
        fewest = cheapest = "the best row of each job" if plans.provenance.top > 1 else "the row of each job"
    fewest, cheapest = fewest + times.left_out(plans, "gpu_hours"), cheapest + times.left_out(plans, "cost")
    headlines.append(Headline("GPU-hours", _spent(plans, "gpu_hours", figure), fewest))
    if not np.isnan(plans.spent("cost")).all():
        paid = _spent(plans, "cost", lambda cost: price(cost, currency))
        headlines.append(Headline("cost", paid, cheapest))
    if plans.compares:
        headlines += times.knee_of(plans, Limits(deadline))
    if deadline is not None:
        met, likely = jobs_within(plans, Limits(deadline))
        within = f"of {counted(jobs, 'job')}, within {duration(deadline * 3600)}"
        more = f"; likely, not surely, by {count(likely)} more" if likely else ""
        headlines.append(Headline("deadline met", count(met), within + more))
    return headlines


def _why_unknown(plans: Plans) -> str:
    needed = ("world_size", "hours", "gpu_hours")
    left_out = [name for name in needed if name not in plans.numbers]
    if left_out and len(left_out) < len(needed):
        return f"the table has no {few(left_out)}"
    if not (plans.status != INFEASIBLE).any():
        return "no row has a plan"
    if not np.isnan(plans.number("step_seconds")).all():
        return "the jobs have no duration"
    if plans.has(Reason.OTHER_HARDWARE).any():
        return Reason.OTHER_HARDWARE.text.partition(": ")[2]
    if plans.provenance.profiles:
        return "no row with a plan has any"
    return "the plans were made without a profile (isobatch calibrate)"


def _spent(plans: Plans, name: str, write: Callable[[float], str]) -> str:
    """Sums the best row of each job, and their ranges if all are known."""
    values = plans.spent(name)
    known = np.flatnonzero(~np.isnan(values))
    if plans.compares:
        known = known[np.argsort(values[known], kind="stable")]
    _, first = np.unique(plans.text("job")[1][known], return_index=True)
    rows = known[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        error = values * (plans.number("hours_error") / plans.spent("hours"))
    return ranged(float(values[rows].sum()), float(error[rows].sum()), write)


# ---- the map, the reasons, the clusters ----


def _map(plans: Plans) -> list[Section]:
    """Tables the status of each job on each cluster, if the table names both and they are few."""
    most = {"job": _MAX_GRID_ROWS, "cluster": _MAX_GRID_COLUMNS}
    if not plans.rows or not most.keys() <= plans.texts.keys():
        return []
    if any(len(np.unique(plans.texts[name][1])) > many for name, many in most.items()):
        return []
    (job, jobs), (cluster, clusters) = (_in_order(*plans.text(name)) for name in ("job", "cluster"))
    codes = np.full((len(jobs), len(clusters)), -1)
    # Of several rows of one pair the worst counts.
    np.maximum.at(codes, (job, cluster), plans.levels)
    kinds = np.array([*LEVELS, "none"])
    rows = [[name, *kinds[codes[row]].tolist()] for row, name in enumerate(jobs)]
    caption = "Status of each job on each cluster: ✓ ok, i with a note, ! with warnings, × infeasible"
    caption += "" if plans.compares else "; an empty cell has no row in this table"
    # The corner is empty: a cluster may be called "job".
    table = HtmlTable(caption, {"": "text", **dict.fromkeys(clusters, "sign")}, rows)
    return [Section("Where each job can run" if plans.compares else "Where each job is", tables=[table])]


def _in_order(names: list[str | None], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Numbers names in order of appearance: each row's number, and the names."""
    each = [names[place] or "(none)" for place in at.tolist()]
    order = {name: number for number, name in enumerate(dict.fromkeys(each))}
    return np.array([order[name] for name in each]), list(order)


def _reasons(plans: Plans) -> list[Section]:
    """Tables the reasons by their number of rows, the infeasible first, notes last."""
    many = {reason: int(plans.has(reason).sum()) for reason in Reason}
    warnings = Reason.of(int(np.bitwise_or.reduce(plans.warnings, initial=np.uint64(0))))
    level = {each: "caution" if each in warnings else "note" for each in Reason}
    level |= {each: each.severity for each in Reason if each.severity == "infeasible"}
    order = sorted(many, key=lambda reason: (-LEVELS.index(level[reason]), -many[reason]))
    rows = [
        (reason.value, level[reason], count(many[reason]), reason.text, reason.source)
        for reason in order
        if many[reason]
    ]
    if not rows:
        return []
    columns = {"reason": "text", "status": "status", "rows": "number"}
    columns |= {"what it says": "text", "source": "text"}
    table = HtmlTable("Reasons, and how many rows have them", columns, rows)
    return [Section("Reasons", tables=[table])]


def _jobs_without_plan(plans: Plans) -> list[Section]:
    """Lists the jobs without a plan in any row, by the reason of most of their rows; folded."""
    names, job = plans.text("job")
    works = np.zeros(len(names), bool)
    works[job[plans.status != INFEASIBLE]] = True
    rows = np.flatnonzero(~works[job])
    if "job" not in plans.texts or not len(rows):
        return []
    refusals = [reason for reason in Reason if reason.severity == "infeasible"]
    hits = np.stack([np.bincount(job[rows], plans.has(each)[rows], len(names)) for each in refusals])
    by_reason: dict[Reason, list[str]] = {}
    for at in dict.fromkeys(job[rows].tolist()):
        reason = refusals[int(hits[:, at].argmax())]
        by_reason.setdefault(reason, []).append(printable(names[at] or "(none)", 60))
    listed = [
        (reason.value, count(len(jobs)), reason.text, few(jobs, _MAX_NAMED))
        for reason, jobs in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]
    columns = {"reason": "text", "jobs": "number", "what it says": "text", "which": "text"}
    table = HtmlTable("Jobs without a plan, by the reason of most of their rows", columns, listed)
    return [Section("Jobs without a plan", tables=[table], folded=True)]


def _by_cluster(plans: Plans) -> list[Section]:
    """Draws how many rows of each cluster can be planned; of many clusters, of each GPU count."""
    names, at = plans.text("cluster")
    label = "cluster"
    if len(names) > 30 or "cluster" not in plans.texts:
        values, at = np.unique(plans.number("world_size"), return_inverse=True)
        names, label = [f"{value:,.0f} GPUs" for value in values], "size"
    if not 1 < len(names) <= 40:
        return []
    levels = plans.levels
    rows = [
        {"name": printable(str(names[place]), 60), "level": level, "rows": many}
        for place in dict.fromkeys(at.tolist())
        for code, level in enumerate(LEVELS)
        if (many := int(((at == place) & (levels == code)).sum()))
    ]
    described = f"Bars: rows of each {label} by status."
    drawing = Drawing(charts.levels(rows), f"Rows by {label} and status", described)
    return [Section(f"By {label}", drawings=[drawing])]
