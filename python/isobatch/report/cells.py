"""A value in a notebook's cell: a heading, a few lines, a small table; and its figures as a data frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from isobatch import words
from isobatch.errors import InputError, must_be
from isobatch.fleet.results import STATUS
from isobatch.fleet.sweep import Sweep
from isobatch.forecast.laws import Laws
from isobatch.planning.elastic import Elastic
from isobatch.planning.plan import Plan
from isobatch.reason import Reason
from isobatch.recipes.recipe import Recipe
from isobatch.report.page import HtmlTable, environment
from isobatch.report.pages import plot
from isobatch.report.plan_page import explained, ways
from isobatch.schedules import Schedule, extent
from isobatch.validate.report import Report
from isobatch.words import count, counted

_MAX_ROWS = 20
_MAX_LINES = 4
_APART = ("recipe", "cluster", "settings", "moves", "consumed", "nearest_world_sizes", "nearest_batches")
"""Fields of a plan that are no figures."""
_KINDS = {"status": "status", "verdict": "status"}
_KINDS |= dict.fromkeys(("quantity", "name", "formula", "source", "proof", "text"), "text")


class Cell(NamedTuple):
    """A heading with a status, lines below it, folded lines, and a table."""

    title: str
    status: str = ""
    lines: Sequence[str] = ()
    folded: Sequence[str] = ()
    table: HtmlTable | None = None


def html_of(value: Any) -> str:
    """Renders a value's cell as HTML, escaped as the pages are; a schedule's as its SVG.

    Raises:
        ModuleNotFoundError: the extra `report` is not installed.
    """
    if isinstance(value, Schedule):
        import vl_convert  # noqa: F401 - to fail as the other cells do

        return plot(value)._repr_svg_()
    cell = next(make for kind, make in _CELLS.items() if isinstance(value, kind))(value)
    rendered: str = environment().get_template("cell.html").render(cell=cell, table=cell.table)
    return rendered


def to_pandas(value: Any) -> Any:
    """Returns a value's figures as a `pandas.DataFrame`.

    Raises:
        InputError: pandas is not installed, or the value is none of ours.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise InputError("to_pandas needs pandas: pip install pandas") from None
    return pd.DataFrame(columns_of(value))


def columns_of(value: Any) -> dict[str, list[Any]]:
    """Returns a value's figures by name, each a list; an unknown one is None.

    >>> columns_of(Elastic(effective_batch=8, gpus=(1, 2), micro_batch=(4, 4), accumulation=(2, 1), weight=2.0))["gpus"]
    [1, 2]
    """
    if isinstance(value, Plan):
        names = [name for name in value.__struct_fields__ if name not in _APART]
        return {name: [_plain(getattr(value, name))] for name in names}
    if isinstance(value, Recipe):
        return {name: [getattr(value, name)] for name in value.__struct_fields__}
    if isinstance(value, Sweep):
        return {name: _column(name, values) for name, values in value.columns.items()}
    if isinstance(value, Elastic):
        return {name: list(getattr(value, name)) for name in ("gpus", "micro_batch", "accumulation")}
    if isinstance(value, Laws):
        laws = {"lr": value.lr_laws, "batch_tokens": value.batch_laws, "critical_batch": value.critical_laws}
        laws["lr_factor"] = value.duration_laws
        rows = [{"quantity": name, **msgspec.structs.asdict(law)} for name in laws for law in laws[name]]
        return {name: [row[name] for row in rows] for name in rows[0]}
    if isinstance(value, Schedule):
        steps = np.unique(np.rint(np.linspace(0, extent.span(value.form), 1001)))
        return {"step": steps.astype(int).tolist(), "lr": value.values(steps).tolist()}
    if isinstance(value, Report):
        columns = {name: [str(getattr(it, name)) for it in value.proofs] for name in ("verdict", "text")}
        causes = [None if it.cause is None else it.cause.value for it in value.proofs]
        return {"proof": [it.name for it in value.proofs], **columns, "cause": causes}
    raise must_be("a Plan, Recipe, Sweep, Elastic, Laws, Schedule or Report", type(value), field="value")


def _plain(value: Any) -> Any:
    is_reasons = isinstance(value, tuple) and value and hasattr(value[0], "bit")
    return [str(reason) for reason in value] if is_reasons else value


def _column(name: str, values: Any) -> list[Any]:
    if name == "reasons":
        return ["; ".join(Reason.of(bits)) for bits in values.tolist()]
    if name == "status" and values.dtype.kind in "iu":
        return [str(text) for text in STATUS[values]]
    return [None if value != value or value == -1 else value for value in values.tolist()]


# ---- the cell of each type ----


def _plan(plan: Plan) -> Cell:
    title, plain, points = explained(plan)
    title, warnings = title.removesuffix(":"), [it.text for it in plan.reasons if it.severity == "caution"]
    if plan.status == "infeasible":
        why = points[: len(points) - len(warnings)]
        return Cell(title, plan.status, why[:_MAX_LINES], warnings, ways(plan))
    shown = [line for line in plain[1:] if not line.startswith("The micro-batch is ")] or plain[1:]
    # Left out first where there is no room: how long the run is comes before what is the same in each epoch.
    for start in ("Per epoch: ", "Also changed: ", "Unchanged: all other "):
        if len(shown) > _MAX_LINES:
            shown = [line for line in shown if not line.startswith(start)]
    return Cell(title, plan.status, shown[:_MAX_LINES], warnings)


def _recipe(recipe: Recipe) -> Cell:
    changed = [
        (field.name, str(value))
        for field in msgspec.structs.fields(recipe)
        if (value := getattr(recipe, field.name)) is not None and value != field.default
    ]
    batch = f"{count(recipe.effective_batch)} samples per step"
    table = HtmlTable("Fields that are not at their defaults", {"field": "text", "value": "number"}, changed)
    return Cell(f"Recipe: {batch}, learning rate {words.real(recipe.lr)}, {recipe.optimizer}", table=table)


def _sweep(swept: Sweep) -> Cell:
    ends = {name: getattr(swept, name) for name in ("fastest", "cheapest", "knee")}
    lines = [f"{name}: {counted(gpus, 'GPU')}" for name, gpus in ends.items() if gpus is not None]
    columns = columns_of(swept)
    names = ("gpus", "status", "micro_batch", "accumulation", "effective_batch", "lr", "hours", "cost")
    good = sum(status != "infeasible" for status in columns["status"])
    title = f"Sweep: {count(good)} of {counted(len(columns['gpus']), 'GPU count')} have a plan"
    return Cell(title, lines=lines, table=_head(columns, names, "GPU counts"))


def _elastic(found: Elastic) -> Cell:
    if found.effective_batch is None:
        return Cell("No batch under the cap works at any of these GPU counts", "infeasible")
    title = f"{count(found.effective_batch)} samples per step work at {counted(len(found.gpus), 'GPU count')}"
    columns = columns_of(found)
    return Cell(title, table=_head(columns, columns, "GPU counts"))


def _laws(found: Laws) -> Cell:
    def ends(figures: tuple[float, float]) -> str:
        return " to ".join(words.figure(figure) for figure in figures)

    lines = [] if found.lr is None else [f"learning rate: {ends(found.lr)}"]
    lines.append(f"best batch: {ends(found.batch_tokens)} tokens")
    names = ("quantity", "name", "value", "formula", "source")
    return Cell("What the published laws say", lines=lines, table=_head(columns_of(found), names, "Laws"))


def _report(report: Report) -> Cell:
    passed = sum(proof.verdict == "pass" for proof in report.proofs)
    rehearsal = f", a rehearsal {report.rehearsal}" if report.rehearsal else ""
    title = f"Validation: {count(passed)} of {counted(len(report.proofs), 'proof')} passed{rehearsal}"
    table = _head(columns_of(report), ("proof", "verdict", "text"), "Proofs", most=50)
    return Cell(title, str(report.verdict), table=table)


def _head(columns: dict[str, list[Any]], names: Any, caption: str, most: int = _MAX_ROWS) -> HtmlTable:
    """Tables the first rows of some columns; one without any known value is left out."""
    filled = [name for name in names if any(value is not None for value in columns[name])]
    rows = [
        [_text(name, columns[name][row]) for name in filled] for row in range(len(columns[filled[0]]))[:most]
    ]
    total = len(columns[filled[0]])
    more = f" (the first {most} of {count(total)})" if total > most else ""
    return HtmlTable(f"{caption}{more}", {name: _KINDS.get(name, "number") for name in filled}, rows)


def _text(name: str, value: Any) -> str:
    if isinstance(value, float):
        return words.real(value) if name == "lr" else words.figure(value)
    return "" if value is None else count(value) if isinstance(value, int) else str(value)


_CELLS: dict[type, Callable[[Any], Cell]] = {
    Plan: _plan,
    Recipe: _recipe,
    Sweep: _sweep,
    Elastic: _elastic,
    Laws: _laws,
    Report: _report,
}
