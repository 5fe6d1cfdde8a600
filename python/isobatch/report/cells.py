"""A plan, counts or a schedule in a notebook's cell: a heading, a few lines, a small table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from isobatch import words
from isobatch.fleet.counts import Counts
from isobatch.fleet.results import STATUS
from isobatch.planning.plan import Plan
from isobatch.report.page import HtmlTable, environment
from isobatch.report.pages import plot
from isobatch.report.plan_page import explained, ways
from isobatch.schedules import Schedule
from isobatch.words import count, counted

_MAX_ROWS = 20
_MAX_LINES = 4


class Cell(NamedTuple):
    """A heading with a status, lines below it, folded lines, and a table."""

    title: str
    status: str = ""
    lines: Sequence[str] = ()
    folded: Sequence[str] = ()
    table: HtmlTable | None = None


def html_of(value: Plan | Counts | Schedule) -> str:
    """Renders a value's cell as HTML, escaped as the pages are; a schedule's as its SVG.

    Raises:
        ModuleNotFoundError: the extra `report` is not installed.
    """
    if isinstance(value, Schedule):
        import vl_convert  # noqa: F401 - to fail as the other cells do

        return plot(value)._repr_svg_()
    cell = _plan(value) if isinstance(value, Plan) else _counts(value)
    rendered: str = environment().get_template("cell.html").render(cell=cell, table=cell.table)
    return rendered


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


def _counts(found: Counts) -> Cell:
    ends = {name: getattr(found, name) for name in ("fastest", "cheapest", "knee")}
    lines = [f"{name}: {counted(gpus, 'GPU')}" for name, gpus in ends.items() if gpus is not None]
    names = ("gpus", "status", "micro_batch", "accumulation", "effective_batch", "lr", "hours", "cost")
    columns = {name: found.columns[name].tolist() for name in names}
    if found.columns["status"].dtype.kind in "iu":
        columns["status"] = STATUS[found.columns["status"]].tolist()
    good = sum(status != "infeasible" for status in columns["status"])
    title = f"Counts: {count(good)} of {counted(len(columns['gpus']), 'GPU count')} have a plan"
    return Cell(title, lines=lines, table=_head(columns))


def _head(columns: dict[str, list[Any]]) -> HtmlTable:
    """Tables the first counts; a column without any known value is left out."""
    texts = {name: [_text(name, value) for value in values] for name, values in columns.items()}
    texts = {name: values for name, values in texts.items() if any(values)}
    rows = list(zip(*texts.values(), strict=True))
    more = f" (the first {_MAX_ROWS} of {count(len(rows))})" if len(rows) > _MAX_ROWS else ""
    kinds = {name: "status" if name == "status" else "number" for name in texts}
    return HtmlTable(f"GPU counts{more}", kinds, rows[:_MAX_ROWS])


def _text(name: str, value: Any) -> str:
    if value is None or value != value or value == -1:
        return ""
    if isinstance(value, float):
        return words.real(value) if name == "lr" else words.figure(value)
    return count(value) if isinstance(value, int) else str(value)
