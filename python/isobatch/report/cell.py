"""What a notebook's cell shows of a value: a heading, a few lines, a small table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from isobatch import words
from isobatch.fleet.sweep import Sweep
from isobatch.forecast.laws import Laws
from isobatch.planning.elastic import Elastic
from isobatch.planning.plan import Plan
from isobatch.recipes.recipe import Recipe
from isobatch.report.frames import columns_of
from isobatch.report.page import Table, environment
from isobatch.report.plot import plot
from isobatch.schedules import Schedule
from isobatch.validate.report import Report
from isobatch.words import count, counted, percent

_MOST_ROWS = 20
_MOST_LINES = 4


class Cell(NamedTuple):
    """A heading with a status, lines below it, lines that are folded away, and a table."""

    title: str
    status: str = ""
    lines: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    table: Table | None = None


def html_of(value: Any) -> str:
    """The cell as HTML, escaped as the pages are."""
    if isinstance(value, Schedule):
        import vl_convert  # noqa: F401 - where it is missing, there is no cell

        return plot(value)._repr_svg_()
    cell = next(make for kind, make in _CELLS.items() if isinstance(value, kind))(value)
    found: str = environment().get_template("cell.html").render(cell=cell, table=cell.table)
    return found


def _plan(plan: Plan) -> Cell:
    lines = plan.explain().splitlines()
    warnings = tuple(f"{reason.text}" for reason in plan.reasons if reason.severity == "caution")
    plain = [line for line in lines[1:] if not line.startswith("  ") and not line.endswith(":")]
    if plan.status == "infeasible":
        plain = [line.removeprefix("  - ") for line in lines[1:] if line.startswith("  - ")]
        plain = plain[: len(plain) - len(warnings)]
        return Cell(
            lines[0].removesuffix(":"), plan.status, tuple(plain[:_MOST_LINES]), warnings, _ways(plan)
        )
    return Cell(lines[0].removesuffix(":"), plan.status, tuple(_first(plain)), warnings)


_LEAST = ("Per epoch: ", "Also changed: ", "Unchanged: all other ")
"""What a cell has room for only where little else is to be said, the first to go first."""


def _first(lines: Sequence[str]) -> list[str]:
    """The lines of a plan that a cell shows, in their order: how long the run is comes before what is the same in each epoch."""
    kept = [line for line in lines if not line.startswith("The micro-batch is ")] or list(lines)
    for start in _LEAST:
        if len(kept) > _MOST_LINES:
            kept = [line for line in kept if not line.startswith(start)]
    return kept[:_MOST_LINES]


def _ways(plan: Plan) -> Table | None:
    """What would work instead, by the keywords of `ib.plan`: in a notebook there is no command line to copy options to."""
    rows = [
        (
            count(each.world_size),
            count(each.layout.effective_batch),
            percent(each.batch_change or 0, signed=True) if each.batch_change else "exact",
            f"{each.micro_batch} × {each.accumulation} × {each.data_parallel}"
            + (", weighted" if each.layout.irregular else ""),
            _keywords(plan, each),
        )
        for each in plan.options
    ]
    if not rows:
        return None
    headers = ("GPUs", "samples per step", "change", "split", "ib.plan(…)")
    return Table("What would work", headers, rows, ("number", "number", "number", "text", "text"))


def _keywords(asked: Plan, option: Plan) -> str:
    changed = [
        f"{name}={value!r}"
        for name, value in option.settings._asdict().items()
        if getattr(asked.settings, name) != value
    ]
    if option.cluster != asked.cluster:
        where = option.world_size if option.cluster.nodes == 1 else option.cluster
        changed.insert(0, f"cluster={where!r}")
    return ", ".join(changed)


def _recipe(recipe: Recipe) -> Cell:
    changed = [
        (field.name, str(value))
        for field in msgspec.structs.fields(recipe)
        if (value := getattr(recipe, field.name)) is not None and value != field.default
    ]
    table = Table("Fields that are not at their defaults", ("field", "value"), changed, ("text", "number"))
    title = f"Recipe: {count(recipe.effective_batch)} samples per step, learning rate {words.real(recipe.lr)}, {recipe.optimizer}"
    return Cell(title, table=table)


def _sweep(swept: Sweep) -> Cell:
    lines = [
        f"{what}: {counted(gpus, 'GPU')}"
        for what in ("fastest", "cheapest", "knee")
        if (gpus := getattr(swept, what)) is not None
    ]
    names = ("gpus", "status", "micro_batch", "accumulation", "effective_batch", "lr", "hours", "cost")
    good = sum(str(status) != "infeasible" for status in columns_of(swept)["status"])
    title = f"Sweep: {count(good)} of {counted(len(swept.columns['gpus']), 'GPU count')} have a plan"
    return Cell(title, lines=tuple(lines), table=_head(columns_of(swept), names, "GPU counts"))


def _elastic(found: Elastic) -> Cell:
    if found.effective_batch is None:
        return Cell("No batch under the cap works at any of these GPU counts", "infeasible")
    title = f"{count(found.effective_batch)} samples per step work at {counted(len(found.gpus), 'GPU count')}"
    return Cell(title, table=_head(columns_of(found), ("gpus", "micro_batch", "accumulation"), "GPU counts"))


def _laws(found: Laws) -> Cell:
    def span(figures: tuple[float, float]) -> str:
        return " to ".join(words.figure(figure) for figure in figures)

    lr = () if found.lr is None else (f"learning rate: {span(found.lr)}",)
    lines = (*lr, f"best batch: {span(found.batch_tokens)} tokens")
    names = ("quantity", "name", "value", "formula", "source")
    return Cell("What the published laws say", lines=lines, table=_head(columns_of(found), names, "Laws"))


def _report(report: Report) -> Cell:
    passed = sum(proof.verdict == "pass" for proof in report.proofs)
    rehearsal = f", a rehearsal {report.rehearsal}" if report.rehearsal else ""
    title = f"Validation: {count(passed)} of {counted(len(report.proofs), 'proof')} passed{rehearsal}"
    return Cell(
        title,
        str(report.verdict),
        table=_head(columns_of(report), ("proof", "verdict", "text"), "Proofs", most=50),
    )


def _head(
    columns: dict[str, list[Any]], names: tuple[str, ...], caption: str, most: int = _MOST_ROWS
) -> Table:
    """The first rows of some columns; a column of which nothing is known is left out."""
    kept = [name for name in names if any(value is not None for value in columns[name])]
    rows = [
        [_said(name, value) for name, value in zip(kept, row, strict=True)]
        for row in zip(*(columns[name] for name in kept), strict=True)
    ]
    more = f" (the first {most} of {count(len(rows))})" if len(rows) > most else ""
    kinds = tuple(
        "status" if name in ("status", "verdict") else "text" if name in _TEXTS else "number" for name in kept
    )
    return Table(f"{caption}{more}", tuple(kept), rows[:most], kinds)


_TEXTS = ("quantity", "name", "formula", "source", "proof", "text")


def _said(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return words.real(value) if name == "lr" else words.figure(value)
    return count(value) if isinstance(value, int) else str(value)


_CELLS: dict[type, Callable[[Any], Cell]] = {
    Plan: _plan,
    Recipe: _recipe,
    Sweep: _sweep,
    Elastic: _elastic,
    Laws: _laws,
    Report: _report,
}
