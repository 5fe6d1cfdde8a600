"""The page of one job over GPU counts: a slider over the plans, then hours and cost."""

from collections.abc import Sequence

import msgspec
import numpy as np

from isobatch.fleet.counts import Counts
from isobatch.fleet.counts import counts as counts_of
from isobatch.fleet.results import STATUS
from isobatch.planning.refusal import LINK_UNKNOWN
from isobatch.reason import Reason, bits_of
from isobatch.report import times
from isobatch.report.charts import steps_over_gpus
from isobatch.report.levels import MEASURED
from isobatch.report.page import Drawing, Headline, HtmlPage, Section
from isobatch.report.table import INFEASIBLE, Plans, plans_of, rows_of
from isobatch.report.what_if import LIMITS, choices_of, tuned_run
from isobatch.report.within import VERDICTS, Limits, best_within, missed, together, verdicts
from isobatch.words import count, counted, few_gpus, figure, real

_LISTED = (
    "gpus", "status", "deadline", "budget", "micro_batch", "accumulation", "effective_batch", "lr",
    "total_steps", "hours", "hours_error", "gpu_hours", "cost", "memory_gib", "reasons",
)  # fmt: skip
"""Columns of the table of all counts; the plans above have the others."""
_MAX_REFUSED = 24
"""Counts without a plan that a line lists."""
_SPLIT = {
    "effective_batch": "samples per step",
    "lr": "learning rate",
    "micro_batch": "samples per replica and pass",
    "accumulation": "passes per step",
}
"""Charts of a sweep without times."""


def counts_page(
    counts: Counts,
    *,
    beside: Sequence[Counts] = (),
    tool: str | None = None,
    title: str = "What changes with the number of GPUs?",
    deadline: float | None = None,
    currency: str = "$",
) -> HtmlPage:
    """Makes the page of a job over GPU counts; those `beside` are the same under other policies.

    Lines of a `tool`, as for `Plan.to`, are shown to copy.
    """
    limits = Limits(deadline or counts.settings.get("deadline_hours"), counts.settings.get("budget"))
    policies = [_without_limits(each) for each in (counts, *beside)]
    needs_tuned = [_plans_of(each).has(Reason.NEEDS_TUNED_GPUS).all() for each in policies]
    policies = [each for at, each in enumerate(policies) if at == 0 or not needs_tuned[at]]
    plans, tuned = _plans_of(policies[0]), tuned_run(policies[0])
    plans = plans._replace(tuned=0 if tuned is None else bits_of(tuned.reasons))
    headlines = list[Headline]()
    if times.times_known(plans):
        headlines += [_within(plans, limits, currency)] if limits.names() else []
        headlines += [*_best(plans, limits, currency), *times.knee_of(plans, limits)]
    if counts.critical_batch is not None:
        headlines.append(Headline("critical batch", figure(counts.critical_batch), counts.definition))
    lead = times.how_sure(plans).strip() or f"No hours and cost: {_why_unknown(counts, plans)}."
    lead = _of_what(counts) + lead
    sections = [
        *(times.time_section(plans, limits, currency) or _split_section(plans)),
        _listed_counts(plans, limits, currency),
    ]
    if len(policies) > 1:
        policy = f"policy {counts.settings.get('policy', 'keep')}"
        lead += f" Cards: {policy}." if headlines else ""
        sections = [section._replace(title=f"{section.title}, {policy}") for section in sections]
    elif beside:
        lead += " Policy grow is left out: it needs gpus, the GPU count of the tuned run."
    return HtmlPage(title, lead, headlines, sections, choices=choices_of(policies, limits, tool, currency))


def _plans_of(counts: Counts) -> Plans:
    status = counts.columns["status"]
    return plans_of({**counts.columns, "status": STATUS[status] if status.dtype.kind in "iu" else status})


def _without_limits(counts: Counts) -> Counts:
    """Plans the counts without deadline and budget: a page has the hours of those that miss them, too."""
    free = {name: value for name, value in counts.settings.items() if name not in LIMITS}
    if free.keys() == counts.settings.keys():
        return counts
    columns = counts_of(
        counts.recipe, counts.columns["gpus"].tolist(), cluster=counts.cluster, **free
    ).columns
    return msgspec.structs.replace(counts, columns=counts.columns | columns, settings=free)


def _of_what(counts: Counts) -> str:
    """Names the model and the GPU of the times, and says whether they were measured."""
    profile = counts.settings.get("profile")
    if profile is None:
        return ""
    model = profile.workload or profile.model
    where = [part for part in (model, profile.gpu or counts.cluster.gpu) if part]
    return f"Times of {' on '.join(where) or 'a profile'}: {MEASURED[profile.estimated]}. "


def _why_unknown(counts: Counts, plans: Plans) -> str:
    """Says why no count has hours."""
    works = plans.status != INFEASIBLE
    if counts.settings.get("profile") is None:
        return "add --profile FILE (isobatch estimate writes one)"
    if not works.any():
        return "no count has a plan"
    if not np.isnan(plans.number("step_seconds")).all():
        return "the recipe has no duration"
    return counts.plan_at(int(plans.gpus[works][-1])).origin.mute or LINK_UNKNOWN


def _listed_counts(plans: Plans, limits: Limits, currency: str) -> Section:
    """Tables the feasible counts and whether they keep the limits; the others are a line for each reason."""
    names: list[str | None] = [None, *VERDICTS]
    judged = {
        name: (names, np.array([names.index(each) for each in column]))
        for name, column in verdicts(plans, limits).items()
    }
    plans = plans._replace(texts=plans.texts | judged)
    works = plans.status != INFEASIBLE
    lines = _refused_counts(plans.only(np.flatnonzero(~works)))
    if limits.names():
        missed = np.array([verdict == "missed" for verdict in together(plans, limits)], bool)
        plans = plans._replace(status=np.where(missed, INFEASIBLE, plans.status))
    headings = {"hours_error": "± hours (95 %)", "cost": f"cost, {currency}"}
    shown = plans.only(np.flatnonzero(works))
    tables = [rows_of(shown, "GPU count", columns=_LISTED, headings=headings)] if works.any() else []
    return Section("All counts", lines, tables=tables)


def _refused_counts(plans: Plans) -> list[str]:
    """Lists the counts without a plan by their reasons."""
    refused: dict[Reason, list[str]] = {}
    for row in range(plans.rows):
        for reason in Reason.of(int(plans.reasons[row])):
            if reason.severity == "infeasible":
                refused.setdefault(reason, []).append(count(plans.gpus[row]))
    return [f"No plan on {few_gpus(gpus, _MAX_REFUSED)}: {reason.text}." for reason, gpus in refused.items()]


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


# ---- the first lines ----


def _best(plans: Plans, limits: Limits, currency: str) -> list[Headline]:
    """Where a job is fastest and cheapest, and the limits missed there."""
    headlines = []
    for label, name in (("fastest", "hours"), ("cheapest", "cost")):
        values = plans.spent(name)
        if np.isnan(values).all():
            continue
        row = int(np.nanargmin(values))
        end = times.end_at(plans, row)
        took = f"{times.spent(plans, row, currency)}{missed(plans, limits, row)}"
        took += f"{end and f'; {end}'}{times.left_out(plans, name)}"
        headlines.append(Headline(label, counted(plans.gpus[row], "GPU"), took))
    return headlines


def _within(plans: Plans, limits: Limits, currency: str) -> Headline:
    """Where a job keeps its limits with the fewest GPU-hours, and how surely."""
    work, judged = plans.spent("gpu_hours"), together(plans, limits)
    row, note = best_within(np.flatnonzero(~np.isnan(work)), work, judged)
    label = limits.text(currency).replace("the ", "").replace(" of ", " ")
    many = counted(sum(verdict in ("met", "likely") for verdict in judged), "count")
    if row is None:
        each = verdicts(plans, limits).items() if None not in limits else ()
        met = [f"{name} met at {sum(at in ('met', 'likely') for at in column)}" for name, column in each]
        return Headline(label, "missed", "; ".join(["at all counts with known hours", *met]))
    took = f"{times.spent(plans, row, currency)}; fewest GPU-hours of {many}"
    return Headline(
        label, counted(plans.gpus[row], "GPU"), f"{'likely met, not surely' if note else 'met'}: {took}"
    )
