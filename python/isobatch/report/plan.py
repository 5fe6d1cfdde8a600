"""What the page of one plan says: old beside new, the learning rate over the run, the stages of its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from isobatch import words
from isobatch.planning.plan import Plan
from isobatch.report.frames import curve
from isobatch.report.page import Drawing, Headline, Page, Section, Table
from isobatch.words import count, percent, printable

_MOST_STAGES = 200

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
    ("hours", "hours", words.figure),
    ("GPU-hours", "gpu_hours", words.figure),
    ("cost", "cost", words.figure),
    ("memory, GiB per GPU", "memory_gib", words.figure),
)


def page_of(plan: Plan, *, title: str | None = None, currency: str = "$") -> Page:
    """The page of a plan."""
    title = title or f"{count(plan.world_size)} GPUs: {_split(plan)}"
    lines = plan.explain().splitlines()
    if plan.status == "infeasible":
        return Page(title, lines[0], [], [_said(lines), _options(plan)], plan.status)
    tuned = plan.tuned()
    runs = [*([("as tuned", tuned)] if tuned is not None else []), ("this plan", plan)]
    sections = [_beside(plan, tuned), *_rates(runs), *_stages(plan, runs), _said(lines)]
    return Page(title, _lead(plan, tuned), _headlines(plan, currency), sections, plan.status)


def _split(plan: Plan) -> str:
    if plan.status == "infeasible":
        return "no plan as asked"
    micro, accumulation, replicas, batch, irregular = plan.layout
    weighted = ", weighted" if irregular else ""
    return f"{count(micro)} × {count(accumulation)} × {count(replicas)}{weighted} = {count(batch)} samples per step"


def _lead(plan: Plan, tuned: Plan | None) -> str:
    if tuned is None:
        return "The number of GPUs of the tuned run is not known: there is nothing to compare with."
    return f"Tuned on {count(tuned.world_size)} GPUs ({_split(tuned)}), now on {count(plan.world_size)}."


def _headlines(plan: Plan, currency: str) -> list[Headline]:
    change = (
        f"{percent(plan.batch_change, signed=True)} of the tuned batch" if plan.batch_change else "as tuned"
    )
    factor = plan.lr_scale or 1.0
    scale = f"{words.figure(factor)} × the tuned one" if factor != 1 else "as tuned"
    found = [
        Headline("samples per step", count(plan.layout.effective_batch), change),
        Headline("learning rate", words.real(plan.lr or 0.0), scale),
    ]
    if plan.total_steps is not None:
        found.append(
            Headline("steps", count(plan.total_steps), f"{count(plan.warmup_steps or 0)} of them warmup")
        )
    if plan.hours is not None:
        found.append(
            Headline(
                "time", words.duration(plan.hours * 3600), f"{words.figure(plan.gpu_hours or 0)} GPU-hours"
            )
        )
    if plan.cost is not None:
        found.append(Headline("cost", words.price(plan.cost, currency)))
    return found


def _beside(plan: Plan, tuned: Plan | None) -> Section:
    """The values of the tuned run beside those of the plan."""
    rows = []
    for label, name, write in _ROWS:
        now = getattr(plan, name)
        old = getattr(tuned, name) if tuned is not None else None
        if now is None and old is None:
            continue
        was, becomes = ("" if value is None else write(value) for value in (old, now))
        rows.append((label, was, becomes, "" if was == becomes or not was or not becomes else "changed"))
    headers = ("", "as tuned", "this plan", "")
    table = Table("The tuned run beside this plan", headers, rows, ("text", "number", "number", "text"))
    return Section("Old beside new", tables=[table])


def _rates(runs: Sequence[tuple[str, Plan]]) -> list[Section]:
    """The learning rate over steps, samples and time, as far as they are known."""
    if any(plan.total_steps is None for _, plan in runs):
        return []
    from isobatch.charts.course import rates

    points = [point for run, plan in runs for point in rate_points(run, plan)]
    drawings = []
    for axis, label in (("step", "optimizer steps"), ("samples", "samples"), ("hours", "hours")):
        known = [point for point in points if point[axis] is not None]
        if known:
            described = " ".join(
                _course(run, plan) for run, plan in runs if axis != "hours" or plan.step_seconds
            )
            drawings.append(Drawing(rates(known, axis, label), f"Learning rate over {label}", described))
    return [Section("The learning rate", drawings=drawings)]


def rate_points(run: str, plan: Plan) -> list[dict[str, Any]]:
    """A plan's learning rates over its whole run: rows with `run`, `at`, `step`, `samples`, `hours` (None: not known) and `lr`."""
    total = plan.course.total_steps or 0
    found = []
    for at, (step, lr) in enumerate(zip(*curve(plan.schedule, total), strict=True)):
        hours = None if plan.step_seconds is None or plan.moves else step * plan.step_seconds / 3600
        samples = float(plan.course.samples_at(Fraction(step)))
        found.append({"run": run, "at": at, "step": step, "samples": samples, "hours": hours, "lr": lr})
    return found


def _course(run: str, plan: Plan) -> str:
    end = plan.schedule.at(plan.total_steps or 0)
    return (
        f"{run.capitalize()}: peak {words.real(plan.schedule.peak)}, warmup of {count(plan.warmup_steps or 0)} steps, "
        f"{words.real(end)} at the end, step {count(plan.total_steps or 0)}."
    )


def _stages(plan: Plan, runs: Sequence[tuple[str, Plan]]) -> list[Section]:
    """The stages in which the batch stays, where there are several."""
    if len(plan.stages) < 2 or plan.total_steps is None:
        return []
    from isobatch.charts.course import batches

    points = []
    for run, each in runs:
        shown = [(stage.step, stage.batch) for stage in each.stages][:_MOST_STAGES]
        shown.append((each.total_steps or shown[-1][0], shown[-1][1]))
        points += [
            {"run": run, "at": at, "step": step, "batch": batch} for at, (step, batch) in enumerate(shown)
        ]
    rows = [
        (
            count(at + 1),
            count(stage.step),
            count(stage.samples),
            count(stage.batch),
            words.figure(stage.lr_scale),
        )
        for at, stage in enumerate(plan.stages[:_MOST_STAGES])
    ]
    headers = ("stage", "from step", "after samples", "samples per step", "learning rate × peak")
    more = (
        f" (the first {_MOST_STAGES} of {count(len(plan.stages))})" if len(plan.stages) > _MOST_STAGES else ""
    )
    table = Table(f"The stages of this plan{more}", headers, rows, ("text", *("number",) * 4))
    described = f"Samples per step in {count(len(plan.stages))} stages, from {count(plan.stages[0].batch)} to {count(plan.stages[-1].batch)}."
    return [
        Section(
            "The batch grows",
            drawings=[Drawing(batches(points), "Samples per step", described)],
            tables=[table],
        )
    ]


def _said(lines: Sequence[str]) -> Section:
    """The plan in words, its warnings as points."""
    points = [line.strip().removeprefix("- ") for line in lines if line.startswith("  - ")]
    plain = [line for line in lines if not line.startswith("  ") and not line.endswith(":")]
    return Section("In words", plain, points)


def _options(plan: Plan) -> Section:
    """What would work instead of an infeasible plan."""
    rows = [
        (
            f"{count(each.world_size)} GPUs",
            _split(each),
            percent(each.batch_change or 0, signed=True),
            _how(plan, each),
        )
        for each in plan.options
    ]
    if not rows:
        return Section("What would work", ["Nothing close to it would work."])
    headers = ("GPUs", "split", "change of the batch", "how")
    table = Table("What would work, best first", headers, rows, ("text", "text", "number", "text"))
    return Section("What would work", tables=[table])


def _how(asked: Plan, option: Plan) -> str:
    """What was changed from what was asked."""
    changed = [
        f"{name} {printable(str(value))}"
        for name, value in option.settings._asdict().items()
        if getattr(asked.settings, name) != value
    ]
    return ", ".join(changed) or "another cluster"
