"""The page of one job over GPU counts: a slider over the plans, then hours and cost."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from isobatch.errors import InputError, must_be
from isobatch.fleet.counts import Counts
from isobatch.fleet.results import STATUS
from isobatch.planning.plan import Plan
from isobatch.planning.refusal import ways
from isobatch.reason import Reason
from isobatch.report import times
from isobatch.report.charts import steps_over_gpus
from isobatch.report.levels import bits_of
from isobatch.report.page import Drawing, Headline, HtmlPage, Section
from isobatch.report.plan_page import ANSWERS, by_level, explained, figures, refused
from isobatch.report.table import INFEASIBLE, Plans, plans_of, rows_of
from isobatch.words import count, counted, duration, few, figure, real

MAX_CHOICES = 4_096
"""Counts that a page has plans for, all policies together twice as many."""
_LISTED = (
    "gpus", "status", "micro_batch", "accumulation", "effective_batch", "lr", "total_steps", "hours",
    "hours_error", "gpu_hours", "cost", "memory_gib", "reasons",
)  # fmt: skip
"""Columns of the table of all counts; the plans above have the others."""
_MAX_REFUSED = 24
"""Counts without a plan that a line lists."""
_MEANINGS = {"keep": "batch and learning rate stay", "grow": "the batch grows with the GPUs"}
_SPLIT = {
    "effective_batch": "samples per step",
    "lr": "learning rate",
    "micro_batch": "samples per replica and pass",
    "accumulation": "passes per step",
}
"""What is drawn where no times are known."""
_START = 8
"""GPUs that the page begins with where the tuned run's are not known: a node's."""


class WhatIf(NamedTuple):
    """All plans of a page as JSON for its script, and the choices between them, `start` GPUs first."""

    counts: Sequence[int]
    start: int
    policies: Sequence[tuple[str, str]]
    tool: str | None
    data: str


def counts_page(
    counts: Counts,
    *,
    beside: Sequence[Counts] = (),
    tool: str | None = None,
    title: str = "What changes with the number of GPUs?",
    deadline: float | None = None,
    currency: str = "$",
) -> HtmlPage:
    """Makes the page of a job over GPU counts.

    Args:
        counts: those of `isobatch.counts`.
        beside: the same counts under other policies, to choose between.
        tool: whose lines are shown to copy, as for `Plan.to`, or why it cannot run the plan; None: none are.
        title: the page's heading.
        deadline: hours that a run may take.
        currency: the sign of the prices.

    Raises:
        InputError: there are more than 4,096 counts, or those beside are others.
    """
    status, tuned = counts.columns["status"], _tuned(counts)
    plans = plans_of({**counts.columns, "status": STATUS[status] if status.dtype.kind in "iu" else status})
    plans = plans._replace(tuned=0 if tuned is None else bits_of(*tuned.reasons))
    headlines = list[Headline]()
    if times.times_known(plans) and deadline is not None:
        headlines.append(_within(plans, deadline, currency))
    if times.times_known(plans):
        headlines += [*_best(plans, currency), *times.knee_of(plans)]
    if counts.critical_batch is not None:
        headlines.append(Headline("critical batch", figure(counts.critical_batch), counts.definition))
    lead = times.how_sure(plans).strip() or "Hours and cost are not known: they were asked without a profile."
    sections = [
        *(times.time_section(plans, deadline, currency) or _split_section(plans)),
        _listed_counts(plans),
    ]
    if beside:
        policy = f"policy {counts.settings.get('policy', 'keep')}"
        lead += f" Cards: {policy}." if headlines else ""
        sections = [section._replace(title=f"{section.title}, {policy}") for section in sections]
    return HtmlPage(title, lead, headlines, sections, choices=_choices([counts, *beside], tool))


def _tuned(counts: Counts) -> Plan | None:
    """Plans the tuned run, with its time on as many of these GPUs; None if it is not known."""
    tuned = counts.plan_at(int(counts.columns["gpus"][0])).tuned()
    if tuned is None:
        return None
    try:
        timed = counts.plan_at(tuned.world_size)
    except InputError:  # no whole nodes
        return tuned
    if timed.layout != tuned.layout or timed.hours is None:
        return tuned
    spent = {name: getattr(timed, name) for name in ("hours", "hours_error", "gpu_hours", "cost")}
    return msgspec.structs.replace(tuned, **spent)


def _listed_counts(plans: Plans) -> Section:
    """Tables the feasible counts; the others are a line for each reason."""
    works = np.flatnonzero(plans.status != INFEASIBLE)
    refused: dict[Reason, list[str]] = {}
    for row in np.flatnonzero(plans.status == INFEASIBLE).tolist():
        for reason in Reason.of(int(plans.reasons[row])):
            if reason.severity == "infeasible":
                refused.setdefault(reason, []).append(count(plans.gpus[row]))
    lines = [f"No plan on {few(gpus, _MAX_REFUSED)} GPUs: {reason.text}." for reason, gpus in refused.items()]
    tables = [rows_of(plans.only(works), "GPU count", columns=_LISTED)] if len(works) else []
    return Section("All counts", lines, tables=tables)


def _split_section(plans: Plans) -> list[Section]:
    """Draws batch, learning rate and split over the feasible counts, where they differ."""
    works = np.flatnonzero(plans.status != INFEASIBLE)
    rows = works[times.at_most(list(range(len(works))))].tolist() if len(works) else []
    drawings = []
    for name, label in _SPLIT.items():
        points = [{"gpus": float(plans.gpus[row]), name: float(plans.number(name)[row])} for row in rows]
        if len({each[name] for each in points}) > 1:
            ends = (
                f"{real(point[name])} on {counted(point['gpus'], 'GPU')}" for point in (points[0], points[-1])
            )
            chart = steps_over_gpus(points, name, label)
            title, described = f"{label.capitalize()} over GPUs", f"{' to '.join(ends)}."
            drawings.append(Drawing(chart, title, described, (points[0]["gpus"], points[-1]["gpus"])))
    return [Section("Batch, learning rate and split", drawings=drawings)] if drawings else []


# ---- the plans to choose between ----


class _Texts:
    """A table of different texts: what many plans say alike is in the page once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, *texts: str) -> list[int]:
        """Returns the numbers of texts."""
        return [self.numbers.setdefault(text, len(self.numbers)) for text in texts]


def _choices(listings: Sequence[Counts], tool: str | None) -> WhatIf:
    gpus = listings[0].columns["gpus"].tolist()
    if len(gpus) > MAX_CHOICES:
        raise must_be(f"at most {MAX_CHOICES:,} counts", len(gpus), field="gpus")
    if any(each.columns["gpus"].tolist() != gpus for each in listings):
        raise InputError("beside must have the same counts", field="beside")
    names = [str(each.settings.get("policy", "keep")) for each in listings]
    texts, tuned = _Texts(), [_tuned(each) for each in listings]
    start = listings[0].recipe.gpus or _START
    first = int(np.argmin(np.abs(listings[0].columns["gpus"] - start)))
    node = listings[0].cluster.gpus_per_node
    by_nodes = 1 < node < gpus[-1] and all(count % node == 0 for count in gpus if count > node)
    data = {
        "counts": gpus,
        "note": f" Above {node} GPUs: whole nodes of {node}." if by_nodes else "",
        "first": first,
        "policies": names,
        "plans": [
            [_choice(each.plan_at(many), tool, texts, run) for each, run in zip(listings, tuned, strict=True)]
            for many in gpus
        ],
        "answers": ANSWERS,
        "texts": list(texts.numbers),
    }
    policies = [(name, _MEANINGS.get(name, "policy")) for name in names]
    return WhatIf(gpus, gpus[first], policies, tool, msgspec.json.encode(data).decode())


def _choice(plan: Plan, tool: str | None, texts: _Texts, tuned: Plan | None) -> list[Any]:
    """Packs a plan: level, headline, figures (label, was, now), points, ways out, lines, what is folded."""
    headline, sentences, points = explained(plan)
    if plan.status == "infeasible":
        why, points = refused(headline, points)
        menu = zip(ways(plan, plan.options), plan.options, strict=True)
        out = [[*texts(*row), option.world_size] for row, option in menu]
        return [plan.status, *texts(why), [], texts(*points), out, [], []]
    known = [texts(label, was, now) for label, now, was in figures(plan, tuned) if now]
    lines = [] if tool is None else texts(*_lines(plan, tool))
    level, warnings, notes = by_level(plan, tuned, points)
    folded = texts(*sentences[1:], *notes)
    return [level, *texts(headline), known, texts(*warnings), [], lines, folded]


def _lines(plan: Plan, tool: str) -> list[str]:
    try:
        return str(plan.to(tool)).rstrip("\n").split("\n")
    except InputError as error:
        return [f"# not for {tool}: {error}"]


# ---- the first lines ----


def _best(plans: Plans, currency: str) -> list[Headline]:
    """Where a job is fastest and cheapest."""
    headlines = []
    for label, name in (("fastest", "hours"), ("cheapest", "cost")):
        values = plans.spent(name)
        if np.isnan(values).all():
            continue
        row = int(np.nanargmin(values))
        end = times.end_at(plans, row)
        took = f"{times.spent(plans, row, currency)}{end and f'; {end}'}{times.left_out(plans, name)}"
        headlines.append(Headline(label, counted(plans.gpus[row], "GPU"), took))
    return headlines


def _within(plans: Plans, deadline: float, currency: str) -> Headline:
    """Where a job keeps the deadline with the fewest GPU-hours, and how surely."""
    work = plans.spent("gpu_hours")
    row, note = times.best_in_time(plans, np.flatnonzero(~np.isnan(work)), work, deadline)
    label = f"deadline {duration(deadline * 3600)}"
    if row is None:
        return Headline(label, "missed", "at all counts with known hours")
    met = f"{'likely met, not surely' if note else 'met'}: {times.spent(plans, row, currency)}"
    return Headline(label, counted(plans.gpus[row], "GPU"), met)
