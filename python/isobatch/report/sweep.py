"""What the page of a sweep says: one job over GPU counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from isobatch import words
from isobatch.fleet.results import STATUS
from isobatch.fleet.sweep import Sweep
from isobatch.report.knees import gpus_of, knee_of
from isobatch.report.page import Headline, Page, Section
from isobatch.report.plans import INFEASIBLE, Plans, plans_of
from isobatch.report.rows import rows_of
from isobatch.report.times import how_sure, time_section, times_known
from isobatch.words import count, counted


def page_of(
    swept: Any,
    *,
    title: str = "One job over GPU counts",
    file: str | None = None,
    deadline: float | None = None,
    currency: str = "$",
) -> Page:
    """The page of a sweep: an `ib.Sweep`, or a table of what `isobatch sweep --json` printed.

    Raises:
        InputError: it is none.
    """
    plans = plans_of(_columns(swept) if isinstance(swept, Sweep) else swept, file)
    gpus = gpus_of(plans)
    good = plans.status != INFEASIBLE
    headlines = [Headline("GPU counts with a plan", count(good.sum()), f"of {count(plans.rows)}")]
    if times_known(plans):
        headlines += [*_ends(plans, currency), *knee_of(plans)]
    if isinstance(swept, Sweep) and swept.critical_batch is not None:
        headlines.append(Headline("critical batch", words.figure(swept.critical_batch), swept.definition))
    known = gpus[~np.isnan(gpus)]
    ends = f"{count(known.min())} to {counted(known.max(), 'GPU')}" if known.size else "no count"
    lead = f"How the job splits, and what more GPUs buy: {ends}.{how_sure(plans)}"
    if not times_known(plans):
        lead += " Hours and cost are not known: the sweep was made without a profile."
    sections = [
        *time_section(plans, deadline, currency),
        Section("All counts", rows=rows_of(plans, "GPU counts: sort by a heading, find a word")),
    ]
    return Page(title, lead, headlines, sections)


def _columns(swept: Sweep) -> dict[str, Any]:
    columns = dict(swept.columns)
    status = columns["status"]
    return columns | {"status": STATUS[status] if status.dtype.kind in "iu" else status}


def _ends(plans: Plans, currency: str) -> list[Headline]:
    found = []
    for label, name in (("fastest", "hours"), ("cheapest", "cost")):
        values = plans.spent(name)
        if np.isnan(values).all():
            continue
        row = int(np.nanargmin(values))
        cost = plans.spent("cost")[row]
        price = "" if np.isnan(cost) else f", {words.price(cost, currency)}"
        took = words.duration(plans.spent("hours")[row] * 3600)
        found.append(Headline(label, counted(gpus_of(plans)[row], "GPU"), f"{took}{price}"))
    return found
