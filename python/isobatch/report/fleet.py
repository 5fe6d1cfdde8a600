"""What the page of a fleet says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isobatch import words
from isobatch.reason import Reason
from isobatch.report.fixes import Fix, by_planning, from_table, summary
from isobatch.report.grid import grid_of
from isobatch.report.knees import knee_of
from isobatch.report.page import Drawing, Headline, Page, Section, Table
from isobatch.report.plans import INFEASIBLE, Plans, plans_of
from isobatch.report.rows import rows_of
from isobatch.report.times import how_sure, time_section, times_known
from isobatch.words import count, counted, percent


def page_of(
    table: Any,
    *,
    title: str = "Plans of a fleet",
    file: str | None = None,
    deadline: float | None = None,
    currency: str = "$",
    jobs: Any = None,
    clusters: Any = None,
    profile: Any = None,
) -> Page:
    """The page of a fleet's plans.

    Args:
        table: what `plan_fleet` gave, or a table that it was written to.
        title: the page's heading.
        file: where it was read from, for errors.
        deadline: hours that a run may take; None: as the plans' settings say.
        currency: the sign of the prices.
        jobs: what was planned; with it the fleet is planned again to find what would fix most rows.
        clusters: likewise.
        profile: likewise.

    Raises:
        InputError: it is no fleet's table.
    """
    plans = plans_of(table, file)
    deadline = plans.deadline if deadline is None else deadline
    bad = int((plans.status == INFEASIBLE).sum())
    fixes = (
        [] if not bad else from_table(plans) if jobs is None else by_planning(plans, jobs, clusters, profile)
    )
    sections = [
        *time_section(plans, deadline, currency),
        *_map(plans),
        *_reasons(plans, fixes, planned=jobs is not None),
        *_by_cluster(plans),
        Section(
            "All rows", rows=rows_of(plans, f"{counted(plans.rows, 'row')}: sort by a heading, find a word")
        ),
    ]
    return Page(
        title,
        _lead(plans, bad, fixes) + how_sure(plans) + _already_chosen(plans),
        _headlines(plans, bad, currency, deadline),
        sections,
    )


def _lead(plans: Plans, bad: int, fixes: Sequence[Fix]) -> str:
    good = plans.rows - bad
    if not bad:
        return f"All {counted(plans.rows, 'row')} can be planned."
    said = summary(list(fixes))
    share = percent(good / plans.rows) if plans.rows else ""
    return f"{count(good)} of {counted(plans.rows, 'row')} can be planned ({share})." + (
        f" What would fix most of the others: {said}." if said else ""
    )


def _already_chosen(plans: Plans) -> str:
    """That the table has not all rows of a job, and what it therefore does not say; a sentence after a space."""
    if plans.compares:
        return ""
    needs = "A knee, and where a job is fastest or cheapest, need a table of all rows"
    made = plans.made
    if made.select in (None, "all"):
        return f" Each job has one row: chosen by --select, or planned on one cluster. {needs} of several clusters."
    top = f" --top {made.top}" if made.top > 1 else ""
    kept = counted(made.top, "row")
    return (
        f" Rows were already chosen: --select {words.printable(made.select, 40)}{top} kept {kept} of each job. {needs}: "
        "plan again without --select."
    )


def _headlines(plans: Plans, bad: int, currency: str, deadline: float | None) -> list[Headline]:
    jobs = _distinct(plans, "job")
    clusters = _distinct(plans, "cluster")
    found = [
        Headline("jobs", count(jobs), f"on {counted(clusters, 'cluster')}" if clusters else ""),
        Headline("feasible rows", count(plans.rows - bad), f"of {count(plans.rows)}"),
    ]
    if not times_known(plans):
        return [
            *found,
            Headline("GPU-hours", "unknown", _why_unknown(plans)),
        ]
    spent = _least if plans.compares else _first
    whose = ("each job where it needs the fewest", "each job where it is cheapest")
    if not plans.compares:
        whose = ("the best row of each job",) * 2 if plans.made.top > 1 else ("the row of each job",) * 2
    found.append(Headline("GPU-hours", words.figure(spent(plans, "gpu_hours")), whose[0]))
    if not np.isnan(plans.spent("cost")).all():
        found.append(Headline("cost", words.price(spent(plans, "cost"), currency), whose[1]))
    if plans.compares:
        found += knee_of(plans)
    if deadline is not None:
        _, job = plans.text("job")
        met = len(np.unique(job[plans.spent("hours") <= deadline]))
        found.append(
            Headline(
                "deadline met",
                count(met),
                f"of {counted(jobs, 'job')}, within {words.duration(deadline * 3600)}",
            )
        )
    return found


def _why_unknown(plans: Plans) -> str:
    needed = ("world_size", "hours", "gpu_hours")
    left_out = [name for name in needed if name not in plans.numbers]
    if left_out and len(left_out) < len(needed):
        return f"the table has no {words.few(left_out)}"
    return "the plans were made without a profile (isobatch calibrate)"


def _distinct(plans: Plans, name: str) -> int:
    return len(np.unique(plans.texts[name][1])) if name in plans.texts else 0


def _least(plans: Plans, name: str) -> float:
    """The sum over jobs of each one's least."""
    _, job = plans.text("job")
    values = plans.spent(name)
    known = ~np.isnan(values)
    least = np.full(int(job.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, job[known], values[known])
    return float(least[np.isfinite(least)].sum())


def _first(plans: Plans, name: str) -> float:
    """The sum over jobs of each one's first row in which it is known: the best of those that were chosen."""
    _, job = plans.text("job")
    values = plans.spent(name)
    known = np.flatnonzero(~np.isnan(values))
    _, first = np.unique(job[known], return_index=True)
    return float(values[known[first]].sum())


def _map(plans: Plans) -> list[Section]:
    grid = grid_of(plans)
    return (
        []
        if grid is None
        else [Section("Where each job can run" if plans.compares else "Where each job is", grid=grid)]
    )


def _reasons(plans: Plans, fixes: Sequence[Fix], *, planned: bool) -> list[Section]:
    """The reasons by how many rows have them, and what would fix most."""
    counted_rows = sorted(
        ((int(plans.has(reason).sum()), reason) for reason in Reason), key=lambda it: -it[0]
    )
    rows = [
        (reason.value, reason.severity, count(many), reason.text, reason.source)
        for many, reason in sorted(counted_rows, key=lambda it: it[1].severity != "infeasible")
        if many
    ]
    if not rows:
        return []
    tables = []
    if fixes:
        made = [(fix.what, fix.how, count(fix.rows), f"of {count(fix.of)} {fix.whose}") for fix in fixes]
        how = "by planning the fleet again" if planned else "by each row's nearest batch and GPU count"
        tables.append(
            Table(
                f"What would make infeasible rows feasible: each change alone, counted {how}",
                ("change", "how", "rows", ""),
                made,
                ("text", "text", "number", "text"),
            )
        )
    headers = ("reason", "status", "rows", "what it says", "source")
    kinds = ("text", "status", "number", "text", "text")
    tables.append(Table("Reasons, and how many rows have them", headers, rows, kinds))
    return [Section("Why not, and what would help", tables=tables)]


def _by_cluster(plans: Plans) -> list[Section]:
    """How many rows of each cluster can be planned; of many clusters, of each GPU count."""
    names, at = plans.text("cluster")
    label = "cluster"
    if len(names) > 30 or "cluster" not in plans.texts:
        values, at = np.unique(plans.number("world_size"), return_inverse=True)
        names, label = [f"{value:,.0f} GPUs" for value in values], "size"
    if not 1 < len(names) <= 40:
        return []
    rows = [
        {"name": words.printable(str(names[place]), 60), "status": status, "rows": many}
        for place in dict.fromkeys(at.tolist())
        for code, status in enumerate(("ok", "caution", "infeasible"))
        if (many := int(((at == place) & (plans.status == code)).sum()))
    ]
    from isobatch.charts.times import statuses

    described = f"Bars: rows of each {label} by status. The map has the same figures."
    return [
        Section(f"By {label}", drawings=[Drawing(statuses(rows), f"Rows by {label} and status", described)])
    ]
