"""The page of many plans: of a fleet, or of one job over GPU counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.fleet.results import STATUS
from isobatch.fleet.sweep import Sweep
from isobatch.reason import Reason
from isobatch.report.charts import statuses
from isobatch.report.fixes import Fix, by_planning, from_table, summary
from isobatch.report.page import Drawing, Grid, Headline, HtmlPage, HtmlTable, Section
from isobatch.report.table import INFEASIBLE, Plans, plans_of, rows_of
from isobatch.report.times import how_sure, knee_of, time_section, times_known
from isobatch.words import count, counted, percent

_MAX_GRID_ROWS, _MAX_GRID_COLUMNS = 60, 40
_SIGNS = {"ok": "✓", "caution": "!", "infeasible": "×", "none": ""}


def fleet_page(
    table: Any,
    *,
    title: str = "Plans of a fleet",
    file: str | None = None,
    deadline: float | None = None,
    currency: str = "$",
    jobs: Any = None,
    clusters: Any = None,
    profile: Any = None,
) -> HtmlPage:
    """Makes the page of a fleet's plans.

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
    fixes: list[Fix] = []
    if (plans.status == INFEASIBLE).any():
        fixes = from_table(plans) if jobs is None else by_planning(plans, jobs, clusters, profile)
    caption = f"{counted(plans.rows, 'row')}: sort by a heading, find a word"
    sections = [
        *time_section(plans, deadline, currency),
        *_map(plans),
        *_reasons(plans, fixes, planned=jobs is not None),
        *_by_cluster(plans),
        Section("All rows", tables=[rows_of(plans, caption)]),
    ]
    lead = _lead(plans, fixes) + how_sure(plans) + _already_chosen(plans)
    return HtmlPage(title, lead, _headlines(plans, currency, deadline), sections)


def sweep_page(
    swept: Any,
    *,
    title: str = "One job over GPU counts",
    file: str | None = None,
    deadline: float | None = None,
    currency: str = "$",
) -> HtmlPage:
    """Makes the page of a sweep: an `ib.Sweep`, or a table of what `isobatch sweep --json` printed.

    Raises:
        InputError: it is none.
    """
    if isinstance(swept, Sweep):
        status = swept.columns["status"]
        named = STATUS[status] if status.dtype.kind in "iu" else status
        plans = plans_of({**swept.columns, "status": named}, file)
    else:
        plans = plans_of(swept, file)
    good = int((plans.status != INFEASIBLE).sum())
    headlines = [Headline("GPU counts with a plan", count(good), f"of {count(plans.rows)}")]
    if times_known(plans):
        headlines += [*_best(plans, currency), *knee_of(plans)]
    if isinstance(swept, Sweep) and swept.critical_batch is not None:
        headlines.append(Headline("critical batch", words.figure(swept.critical_batch), swept.definition))
    known = plans.gpus[~np.isnan(plans.gpus)]
    ends = f"{count(known.min())} to {counted(known.max(), 'GPU')}" if known.size else "no count"
    lead = f"How the job splits, and what more GPUs buy: {ends}.{how_sure(plans)}"
    if not times_known(plans):
        lead += " Hours and cost are not known: the sweep was made without a profile."
    rows = rows_of(plans, "GPU counts: sort by a heading, find a word")
    sections = [*time_section(plans, deadline, currency), Section("All counts", tables=[rows])]
    return HtmlPage(title, lead, headlines, sections)


# ---- the first lines ----


def _best(plans: Plans, currency: str) -> list[Headline]:
    """Where a sweep is fastest and cheapest."""
    found = []
    for label, name in (("fastest", "hours"), ("cheapest", "cost")):
        values = plans.spent(name)
        if np.isnan(values).all():
            continue
        row = int(np.nanargmin(values))
        cost = plans.spent("cost")[row]
        price = "" if np.isnan(cost) else f", {words.price(cost, currency)}"
        took = words.duration(plans.spent("hours")[row] * 3600)
        found.append(Headline(label, counted(plans.gpus[row], "GPU"), f"{took}{price}"))
    return found


def _lead(plans: Plans, fixes: Sequence[Fix]) -> str:
    good = int((plans.status != INFEASIBLE).sum())
    if good == plans.rows:
        return f"All {counted(plans.rows, 'row')} can be planned."
    best = summary(list(fixes))
    more = f" What would fix most of the others: {best}." if best else ""
    return (
        f"{count(good)} of {counted(plans.rows, 'row')} can be planned ({percent(good / plans.rows)}).{more}"
    )


def _already_chosen(plans: Plans) -> str:
    """Warns of a table of chosen rows, without the others of a job; a sentence after a space."""
    if plans.compares:
        return ""
    needs = "A knee, and where a job is fastest or cheapest, need a table of all rows"
    provenance = plans.provenance
    if provenance.select in (None, "all"):
        return f" Each job has one row: chosen by --select, or planned on one cluster. {needs} of several clusters."
    top = f" --top {provenance.top}" if provenance.top > 1 else ""
    by = f"--select {words.printable(provenance.select, 40)}{top} kept {counted(provenance.top, 'row')} of each job"
    return f" Rows were already chosen: {by}. {needs}: plan again without --select."


def _headlines(plans: Plans, currency: str, deadline: float | None) -> list[Headline]:
    jobs, clusters = (len(np.unique(plans.texts[it][1])) if it in plans.texts else 0 for it in ("job", "cluster"))  # fmt: skip
    good = int((plans.status != INFEASIBLE).sum())
    found = [
        Headline("jobs", count(jobs), f"on {counted(clusters, 'cluster')}" if clusters else ""),
        Headline("feasible rows", count(good), f"of {count(plans.rows)}"),
    ]
    if not times_known(plans):
        return [*found, Headline("GPU-hours", "unknown", _why_unknown(plans))]
    fewest, cheapest = "each job where it needs the fewest", "each job where it is cheapest"
    if not plans.compares:
        fewest = cheapest = "the best row of each job" if plans.provenance.top > 1 else "the row of each job"
    found.append(Headline("GPU-hours", words.figure(_spent(plans, "gpu_hours")), fewest))
    if not np.isnan(plans.spent("cost")).all():
        found.append(Headline("cost", words.price(_spent(plans, "cost"), currency), cheapest))
    if plans.compares:
        found += knee_of(plans)
    if deadline is not None:
        in_time = len(np.unique(plans.text("job")[1][plans.spent("hours") <= deadline]))
        within = f"of {counted(jobs, 'job')}, within {words.duration(deadline * 3600)}"
        found.append(Headline("deadline met", count(in_time), within))
    return found


def _why_unknown(plans: Plans) -> str:
    needed = ("world_size", "hours", "gpu_hours")
    left_out = [name for name in needed if name not in plans.numbers]
    if left_out and len(left_out) < len(needed):
        return f"the table has no {words.few(left_out)}"
    return "the plans were made without a profile (isobatch calibrate)"


def _spent(plans: Plans, name: str) -> float:
    """Sums each job's least; of chosen rows its first known one, the best."""
    values = plans.spent(name)
    known = np.flatnonzero(~np.isnan(values))
    if plans.compares:
        known = known[np.argsort(values[known], kind="stable")]
    _, first = np.unique(plans.text("job")[1][known], return_index=True)
    return float(values[known[first]].sum())


# ---- the map, the reasons, the clusters ----


def _map(plans: Plans) -> list[Section]:
    """Draws the status of each job on each cluster, where the table names both and they are not too many to be seen."""
    most = {"job": _MAX_GRID_ROWS, "cluster": _MAX_GRID_COLUMNS}
    if not plans.rows or any(
        name not in plans.texts or len(np.unique(plans.texts[name][1])) > many for name, many in most.items()
    ):
        return []
    (job, jobs), (cluster, clusters) = (_in_order(*plans.text(name)) for name in ("job", "cluster"))
    codes = np.full((len(jobs), len(clusters)), -1)
    # Of several rows of one pair the worst counts.
    np.maximum.at(codes, (job, cluster), plans.status)
    gpus = np.full(codes.shape, np.nan)
    gpus[job, cluster] = plans.number("world_size")
    kinds = [*STATUS.tolist(), "none"]

    def cell(row: int, column: int) -> tuple[str, str, str]:
        kind, many = kinds[codes[row, column]], gpus[row, column]
        where = f" ({counted(int(many), 'GPU')})" if many == many else ""
        return kind, _SIGNS[kind], f"{jobs[row]} on {clusters[column]}{where}: {kind}"

    rows = [(name, [cell(row, column) for column in range(len(clusters))]) for row, name in enumerate(jobs)]
    caption = "Status of each job on each cluster: ✓ ok, ! with warnings, × infeasible"
    caption += "" if plans.compares else "; an empty cell has no row in this table"
    title = "Where each job can run" if plans.compares else "Where each job is"
    return [Section(title, grid=Grid(caption, "job", clusters, rows))]


def _in_order(names: list[str | None], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Numbers names in order of appearance: each row's number, and the names."""
    order = {place: number for number, place in enumerate(dict.fromkeys(at.tolist()))}
    return np.array([order[place] for place in at.tolist()]), [names[place] or "(none)" for place in order]


def _reasons(plans: Plans, fixes: Sequence[Fix], *, planned: bool) -> list[Section]:
    """Lists the reasons by their number of rows, and the changes to fix most."""
    many = {reason: int(plans.has(reason).sum()) for reason in Reason}
    order = sorted(many, key=lambda reason: (reason.severity != "infeasible", -many[reason]))
    rows = [
        (reason.value, reason.severity, count(many[reason]), reason.text, reason.source)
        for reason in order
        if many[reason]
    ]
    if not rows:
        return []
    tables = []
    if fixes:
        how = "by planning the fleet again" if planned else "by each row's nearest batch and GPU count"
        tables.append(
            HtmlTable(
                f"What would make infeasible rows feasible: each change alone, counted {how}",
                {"change": "text", "how": "text", "rows": "number", "": "text"},
                [(fix.what, fix.how, count(fix.rows), f"of {count(fix.of)} {fix.whose}") for fix in fixes],
            )
        )
    columns = {"reason": "text", "status": "status", "rows": "number", "what it says": "text", "source": "text"}  # fmt: skip
    tables.append(HtmlTable("Reasons, and how many rows have them", columns, rows))
    return [Section("Why not, and what would help", tables=tables)]


def _by_cluster(plans: Plans) -> list[Section]:
    """Draws how many rows of each cluster can be planned; of many clusters, of each GPU count."""
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
        for code, status in enumerate(STATUS.tolist())
        if (many := int(((at == place) & (plans.status == code)).sum()))
    ]
    described = f"Bars: rows of each {label} by status."
    drawing = Drawing(statuses(rows), f"Rows by {label} and status", described)
    return [Section(f"By {label}", drawings=[drawing])]
