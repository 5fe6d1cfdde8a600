"""A value's chart, for a notebook."""

from __future__ import annotations

from typing import Any

from isobatch.charts import theme
from isobatch.errors import InputError
from isobatch.fleet.sweep import Sweep
from isobatch.forecast.laws import Laws
from isobatch.planning.elastic import Elastic
from isobatch.report.frames import columns_of
from isobatch.report.write import needed, page_of_value
from isobatch.schedules import Schedule
from isobatch.words import count, printable


def chart_of(value: Any) -> Any:
    """The charts of a plan's, a sweep's or a validation's page above each other; of other values their own.

    Raises:
        InputError: the extra `report` is not installed, or there is nothing to draw.
    """
    needed()
    import altair as alt

    if isinstance(value, Schedule):
        from isobatch.charts.course import rates

        columns = columns_of(value)
        points = [
            {"run": "schedule", "at": step, "step": step, "lr": lr}
            for step, lr in zip(columns["step"], columns["lr"], strict=True)
        ]
        return theme.themed(rates(points, "step", "optimizer steps"), printable(repr(value), 80))
    if isinstance(value, Elastic):
        return _elastic(value)
    if isinstance(value, Laws):
        return _laws(value)
    page = page_of_value(value)
    if not page.drawings:
        why = (
            "the sweep has no times: pass a profile"
            if isinstance(value, Sweep)
            else "it is infeasible, or has no length"
        )
        raise InputError(f"there is nothing to draw: {why}")
    charts = [each.chart.properties(title=printable(each.title)) for each in page.drawings]
    whole = (
        charts[0]
        if len(charts) == 1
        else alt.vconcat(*charts).resolve_scale(color="independent", strokeDash="independent")
    )
    return theme.themed(whole, printable(page.title))


def _elastic(found: Elastic) -> Any:
    from isobatch.charts.values import by_count

    if found.effective_batch is None:
        raise InputError("there is nothing to draw: no batch works at any of these counts")
    columns = columns_of(found)
    rows = [
        {"gpus": str(gpus), "part": part, "value": value}
        for part in ("micro_batch", "accumulation")
        for gpus, value in zip(columns["gpus"], columns[part], strict=True)
    ]
    return theme.themed(by_count(rows, columns["gpus"]), f"How {count(found.effective_batch)} samples split")


def _laws(found: Laws) -> Any:
    from isobatch.charts.values import by_name

    columns = columns_of(found)
    rows = [
        {"quantity": quantity, "name": name, "value": value}
        for quantity, name, value in zip(columns["quantity"], columns["name"], columns["value"], strict=True)
    ]
    return theme.themed(by_name(rows), "What the published laws say")
