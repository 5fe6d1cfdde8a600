"""A value in a notebook's cell: a heading, a few lines, a small table."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from isobatch import words
from isobatch.fleet.counts import Counts
from isobatch.fleet.results import STATUS
from isobatch.forecast.laws import Laws
from isobatch.planning.explain import Topic
from isobatch.planning.plan import Plan
from isobatch.planning.settings import Rules, ScalingRule
from isobatch.recipes.recipe import Recipe
from isobatch.report.page import HtmlTable, environment
from isobatch.report.pages import plot
from isobatch.report.plan_page import by_level, sentences, ways
from isobatch.report.validation_page import validation_page
from isobatch.schedules import Schedule
from isobatch.validate.report import Report
from isobatch.words import count, counted

_MAX_ROWS = 20
_MAX_LINES = 4
_KINDS = {"status": "status"}
_KINDS |= dict.fromkeys(("quantity", "name", "formula", "source", "rule", "holds"), "text")


class Cell(NamedTuple):
    """A heading with a status, lines below it, folded lines with their sum, and a table."""

    title: str
    status: str = ""
    lines: Sequence[str] = ()
    folded: Sequence[str] = ()
    parts: str = ""
    table: HtmlTable | None = None


def html_of(value: Any) -> str:
    """Renders a value's cell as HTML, escaped as the pages are; a schedule's as its SVG."""
    if isinstance(value, Schedule):
        import vl_convert  # noqa: F401 - to fail as the other cells do

        return plot(value)._repr_svg_()
    cell = next(make for kind, make in _CELLS.items() if isinstance(value, kind))(value)
    rendered: str = environment().get_template("cell.html").render(cell=cell, table=cell.table)
    return rendered


# ---- the cell of each type ----


def _plan(plan: Plan) -> Cell:
    explanation = plan.explanation()
    title = explanation.headline.removesuffix(":")
    cautions = [each.text for each in plan.reasons if each.severity == "caution"]
    if plan.status == "infeasible":
        why = [text for _, text in explanation.reasons]
        return Cell(title, plan.status, why[:_MAX_LINES], cautions, _parts(len(cautions), 0), ways(plan))
    # Left out first where there is no room: how long the run is comes before what is the same in each epoch.
    left_out = [Topic.CAP]
    shown = sentences(explanation, *left_out)[1:] or sentences(explanation)[1:]
    for topic in (Topic.EPOCH, Topic.OTHER_CHANGES):
        if len(shown) > _MAX_LINES:
            left_out.append(topic)
            shown = sentences(explanation, *left_out)[1:]
    level, warnings, notes = by_level(plan, plan.tuned(), cautions)
    parts = _parts(len(warnings), len(notes))
    return Cell(title, level, shown[:_MAX_LINES], [*warnings, *notes], parts)


def _parts(warnings: int, notes: int) -> str:
    """Writes how many warnings and notes there are."""
    counts = ((warnings, "warning"), (notes, "note"))
    return ", ".join(counted(number, noun) for number, noun in counts if number)


def _recipe(recipe: Recipe) -> Cell:
    changed = [
        (field.name, str(value))
        for field in msgspec.structs.fields(recipe)
        if (value := getattr(recipe, field.name)) is not None and value != field.default
    ]
    batch = f"{count(recipe.effective_batch)} samples per step"
    table = HtmlTable("Fields that are not at their defaults", {"field": "text", "value": "number"}, changed)
    return Cell(f"Recipe: {batch}, learning rate {words.real(recipe.lr)}, {recipe.optimizer}", table=table)


def _counts(counts: Counts) -> Cell:
    ends = {name: getattr(counts, name) for name in ("fastest", "cheapest", "knee")}
    lines = [f"{name}: {counted(gpus, 'GPU')}" for name, gpus in ends.items() if gpus is not None]
    names = ("gpus", "status", "micro_batch", "accumulation", "effective_batch", "lr", "hours", "cost")
    columns = {name: counts.columns[name].tolist() for name in names}
    if counts.columns["status"].dtype.kind in "iu":
        columns["status"] = STATUS[counts.columns["status"]].tolist()
    good = sum(status != "infeasible" for status in columns["status"])
    title = f"Counts: {count(good)} of {counted(len(columns['gpus']), 'GPU count')} have a plan"
    return Cell(title, lines=lines, table=_head(columns, "GPU counts"))


def _laws(laws: Laws) -> Cell:
    def ends(figures: tuple[float, float]) -> str:
        return " to ".join(words.figure(figure) for figure in figures)

    lines = [] if laws.lr is None else [f"learning rate: {ends(laws.lr)}"]
    lines.append(f"best batch: {ends(laws.batch_tokens)} tokens")
    by_quantity = {"lr": laws.lr_laws, "batch_tokens": laws.batch_laws, "critical_batch": laws.critical_laws}
    by_quantity |= {"lr_factor": laws.duration_laws, "batch_factor": laws.batch_duration_laws}
    rows = [(name, law) for name, each in by_quantity.items() for law in each]
    columns: dict[str, list[Any]] = {"quantity": [name for name, _ in rows]}
    for name in ("name", "value", "formula", "source"):
        columns[name] = [getattr(law, name) for _, law in rows]
    return Cell("What the published laws say", lines=lines, table=_head(columns, "Laws"))


def _rules(rules: Rules) -> Cell:
    columns = {name: [getattr(each, name) for each in rules] for name in ScalingRule._fields}
    return Cell("How a learning rate follows the batch, k times the tuned one", table=_head(columns, "Rules"))


def _report(report: Report) -> Cell:
    page = validation_page(report)
    return Cell(page.title, page.status, [page.lead], table=page.sections[0].tables[0])


def _head(columns: dict[str, list[Any]], caption: str) -> HtmlTable:
    """Tables the first rows of columns; one without any known value is left out."""
    texts = {name: [_text(name, value) for value in values] for name, values in columns.items()}
    texts = {name: values for name, values in texts.items() if any(values)}
    rows = list(zip(*texts.values(), strict=True))
    more = f" (the first {_MAX_ROWS} of {count(len(rows))})" if len(rows) > _MAX_ROWS else ""
    return HtmlTable(
        f"{caption}{more}", {name: _KINDS.get(name, "number") for name in texts}, rows[:_MAX_ROWS]
    )


def _text(name: str, value: Any) -> str:
    if value is None or value != value or value == -1:
        return ""
    if isinstance(value, float):
        return words.real(value) if name == "lr" else words.figure(value)
    return count(value) if isinstance(value, int) else str(value)


_CELLS: dict[type, Callable[[Any], Cell]] = {
    Plan: _plan,
    Recipe: _recipe,
    Counts: _counts,
    Laws: _laws,
    Rules: _rules,
    Report: _report,
}
