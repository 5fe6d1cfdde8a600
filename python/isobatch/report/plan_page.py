"""The page of one plan: old beside new, the learning rate over the run, the stages of its batch."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from isobatch import words
from isobatch.planning import refusal
from isobatch.planning.explain import Explanation, Topic
from isobatch.planning.plan import Plan
from isobatch.planning.refusal import error_share, time_of
from isobatch.reason import Reason
from isobatch.report.charts import over_run
from isobatch.report.levels import MEASURED, level_of
from isobatch.report.page import Drawing, Headline, HtmlPage, HtmlTable, Section
from isobatch.schedules import Schedule, extent
from isobatch.words import count, counted, percent

_MAX_STAGES = 200
ANSWERS = ("learning rate, peak", "steps", "hours", "GPU-hours", "cost", "memory, GiB per GPU")
"""Figures that stand out where there is no tuned run to compare with; the headline has the split."""

_ROWS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("GPUs", "world_size", count),
    ("replicas", "data_parallel", count),
    ("micro-batch, samples per replica and pass", "micro_batch", count),
    ("accumulation, passes per step", "accumulation", count),
    ("batch, samples per step", "effective_batch", count),
    ("learning rate, peak", "lr", words.real),
    ("weight decay", "weight_decay", words.real),
    ("beta1", "beta1", words.real),
    ("beta2", "beta2", words.real),
    ("eps", "eps", words.real),
    ("EMA decay", "ema_decay", words.real),
    ("warmup, steps", "warmup_steps", count),
    ("steps", "total_steps", count),
    ("steps per epoch", "steps_per_epoch", count),
    ("hours", "hours", words.hours),
    ("± hours, 95 % interval", "hours_error", words.figure),
    ("GPU-hours", "gpu_hours", words.figure),
    ("memory, GiB per GPU", "memory_gib", words.figure),
)


def plan_page(plan: Plan, *, title: str | None = None, currency: str = "$") -> HtmlPage:
    """Makes the page of a plan."""
    explanation = plan.explanation(currency)
    cautions = [text for _, text in explanation.cautions]
    if plan.status == "infeasible":
        why = refused(explanation)
        menu = ways(plan, currency)
        nothing = [] if menu else ["Nothing nearby would work."]
        sections = [Section("What would work", nothing, tables=[menu] if menu else [])]
        sections += [Section("Warnings", points=cautions)] if cautions else []
        return HtmlPage(title or why, "" if title is None else why, [], sections, plan.status)
    tuned = plan.tuned()
    lead = "Add the GPUs of the tuned run (gpus = N) to the recipe to see what changes."
    if tuned is not None:
        lead = f"Tuned on {count(tuned.world_size)} GPUs ({_layout(tuned)}), now on {count(plan.world_size)}."
    lead += _of_times(plan)
    runs = [*([("as tuned", tuned)] if tuned is not None else []), ("this plan", plan)]
    level, warnings, notes = by_level(plan, tuned, cautions)
    beside, rest = _beside(plan, tuned, currency)
    sections = [
        *([Section("Warnings", points=warnings)] if warnings else []),
        beside,
        *_rates(runs),
        *_stages(plan, runs),
        Section(
            "Details", sentences(explanation)[1:], notes, tables=[rest] if rest.rows else [], folded=True
        ),
    ]
    title = title or f"Plan for {counted(plan.world_size, 'GPU')}: {_layout(plan)}"
    return HtmlPage(title, lead, _headlines(plan, currency), sections, level)


def _of_times(plan: Plan) -> str:
    """Names the model and the GPU of a plan's times, and says whether they were measured; after a space."""
    if plan.hours is None:
        return ""
    sizes = (plan.recipe.parameters, "parameters"), (plan.recipe.seq_len, "tokens")
    model = ", ".join(f"{count(size)} {name}" for size, name in sizes if size is not None)
    where = [part for part in (model, plan.cluster.gpu) if part]
    of = f" of {' on '.join(where)}" if where else ""
    return f" Times{of}: {MEASURED[Reason.FORECAST_ESTIMATED in plan.reasons]}."


def by_level(plan: Plan, tuned: Plan | None, texts: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Parts a feasible plan's texts, one for each caution: its level, the warnings, and the notes."""
    level, reasons = level_of(plan, tuned)
    cautions = [reason for reason in plan.reasons if reason.severity == "caution"]
    by_reason = list(zip(cautions, texts, strict=True))
    warnings = [text for reason, text in by_reason if reason in reasons]
    return level, warnings, [text for reason, text in by_reason if reason not in reasons]


def sentences(explanation: Explanation, *left_out: Topic) -> list[str]:
    """Lists the sentences of an explanation without a ramp's stages and the topics to leave out."""
    return [text for topic, text, _ in explanation.sentences if topic not in (Topic.STAGES, *left_out)]


def refused(explanation: Explanation) -> str:
    """Writes in one sentence why there is no plan."""
    return f"{explanation.headline} {'; '.join(why for _, why in explanation.reasons)}"


def _layout(plan: Plan) -> str:
    """Writes a plan's split as micro-batch × accumulation × replicas = batch."""
    micro, accumulation, replicas, batch, irregular = plan.layout
    weighted = ", weighted" if irregular else ""
    split = f"{count(micro)} × {count(accumulation)} × {count(replicas)}{weighted}"
    return f"{split} = {count(batch)} samples per step"


def ways(plan: Plan, currency: str = "$") -> HtmlTable | None:
    """Tables the alternatives to an infeasible plan, by the keywords of `ib.plan`."""
    menu = zip(plan.options, refusal.ways(plan, plan.options, currency), strict=True)
    rows = [(batch, _keywords(plan, option), split, price) for option, (batch, split, price, _) in menu]
    names = ["what works, best first", "ib.plan(…)", "split", "time"]
    is_timed = any(price for *_, price in rows)
    columns = dict.fromkeys(names if is_timed else names[:-1], "text")
    return HtmlTable("What would work", columns, [row[: len(columns)] for row in rows]) if rows else None


def _keywords(refused_plan: Plan, option: Plan) -> str:
    changed = [
        f"{name}={value!r}"
        for name, value in option.settings._asdict().items()
        if getattr(refused_plan.settings, name) != value
    ]
    if option.cluster != refused_plan.cluster:
        where = option.world_size if option.cluster.nodes == 1 else option.cluster
        changed.insert(0, f"cluster={where!r}")
    return ", ".join(changed)


def _headlines(plan: Plan, currency: str) -> list[Headline]:
    of_tuned = f"{percent(plan.batch_change or 0, signed=True)} of the tuned batch"
    factor = plan.lr_scale or 1.0
    scale = f"{words.figure(factor)} × the tuned one" if factor != 1 else "as tuned"
    moved = of_tuned if plan.batch_change else "as tuned"
    headlines = [
        Headline("samples per step", count(plan.layout.effective_batch), moved),
        Headline("learning rate", words.real(plan.lr or 0.0), scale),
    ]
    if plan.total_steps is not None:
        warmup = f"{count(plan.warmup_steps or 0)} of them warmup"
        headlines.append(Headline("steps", count(plan.total_steps), warmup))
    if plan.hours is not None:
        share = error_share(plan)
        sure = "no range known" if share is None else f"± {percent(share)}"
        spent = f"{words.figure(plan.gpu_hours or 0)} GPU-hours"
        headlines.append(Headline("time", time_of(plan), f"{spent}; {sure}"))
        if plan.cost is not None:
            error = share and plan.cost * share
            paid = words.ranged(plan.cost, error, lambda cost: words.price(cost, currency))
            headlines.append(Headline("cost", paid, sure))
    return headlines


def figures(plan: Plan, tuned: Plan | None, currency: str) -> list[tuple[str, str, str]]:
    """Lists known values as texts: a label, this plan's value, the tuned run's; "" for an unknown one."""
    rows = []
    for label, name, write in (*_ROWS, ("cost", "cost", lambda cost: words.price(cost, currency))):
        values = (getattr(each_plan, name, None) for each_plan in (plan, tuned))
        now, was = ("" if value is None else write(value) for value in values)
        rows.append((label, now, was))
    return [row for row in rows if any(row[1:])]


def _beside(plan: Plan, tuned: Plan | None, currency: str) -> tuple[Section, HtmlTable]:
    """Puts the changes beside the tuned run, and tables all other values."""
    rows = figures(plan, tuned, currency)
    columns = {"figure": "text", "this plan": "number"}
    if tuned is None:
        answers = [row[:2] for row in rows if row[0] in ANSWERS]
        rest = HtmlTable("Other values", columns, [row[:2] for row in rows if row[0] not in ANSWERS])
        return Section("The plan", tables=[HtmlTable("This plan", columns, answers)]), rest
    columns["as tuned"] = "number"
    changed = [row for row in rows if row[1] != row[2]]
    rest = HtmlTable("What stays", columns, [row for row in rows if row[1] == row[2]])
    unchanged = [] if changed else ["All values are those of the tuned run."]
    tables = [HtmlTable("What changes", columns, changed)] if changed else []
    return Section("New beside old", unchanged, tables=tables), rest


def curve(schedule: Schedule, stop: float) -> list[tuple[float, float]]:
    """Samples a schedule from 0 to the end, every turn among the steps: each step and its learning rate."""
    turns = [step for step in extent.knots(schedule.form) if step <= stop]
    # Just before a jump as well, so that it is drawn upright.
    before = [max(0.0, step - stop * 1e-6) for step in turns]
    steps = np.unique(np.concatenate([np.linspace(0, stop, 240), turns, before]))
    return list(zip(steps.tolist(), schedule.values(steps).tolist(), strict=True))


def _rates(runs: Sequence[tuple[str, Plan]]) -> list[Section]:
    """Draws the learning rate over steps and over samples, where the length is known."""
    if any(plan.total_steps is None for _, plan in runs):
        return []
    points = [point for run, plan in runs for point in rate_points(run, plan)]
    described = " ".join(_course(run, plan) for run, plan in runs)
    by_step, by_samples = over_run(points, "step", "optimizer steps"), over_run(points, "samples", "samples")
    drawings = [
        Drawing(by_step, "Learning rate over optimizer steps", described),
        Drawing(by_samples, "Learning rate over samples", "The same by the samples seen."),
    ]
    return [Section("The learning rate", drawings=drawings)]


def rate_points(run: str, plan: Plan) -> list[dict[str, Any]]:
    """Lists a plan's learning rates over its run: rows with `run`, `at`, `step`, `samples` and `lr`."""
    points = []
    for at, (step, lr) in enumerate(curve(plan.schedule, plan.course.total_steps or 0)):
        samples = float(plan.course.samples_at(Fraction(step)))
        points.append({"run": run, "at": at, "step": step, "samples": samples, "lr": lr})
    return points


def _course(run: str, plan: Plan) -> str:
    end = plan.schedule.at(plan.total_steps or 0)
    return (
        f"{run.capitalize()}: peak {words.real(plan.schedule.peak)}, warmup of "
        f"{count(plan.warmup_steps or 0)} steps, {words.real(end)} at the end, step "
        f"{count(plan.total_steps or 0)}."
    )


def _stages(plan: Plan, runs: Sequence[tuple[str, Plan]]) -> list[Section]:
    """Draws the stages of the batch, where there are several."""
    stages = plan.stages
    if len(stages) < 2 or plan.total_steps is None:
        return []
    points = []
    for run, each in runs:
        shown = [(stage.step, stage.batch) for stage in each.stages][:_MAX_STAGES]
        shown.append((each.total_steps or shown[-1][0], shown[-1][1]))
        points += [
            {"run": run, "at": at, "step": step, "batch": batch} for at, (step, batch) in enumerate(shown)
        ]
    ends = f"from {count(stages[0].batch)} to {count(stages[-1].batch)}"
    described = f"Samples per step in {count(len(stages))} stages, {ends}."
    drawing = Drawing(over_run(points, "step", "optimizer steps"), "Samples per step", described)
    return [Section("The batch grows", drawings=[drawing])]
