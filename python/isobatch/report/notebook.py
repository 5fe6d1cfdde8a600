"""Shows our values in a notebook's cells.

IPython learns their types by name, and asks `cells` for the cell."""

from typing import Any

TYPES = (
    "isobatch.fleet.counts.Counts",
    "isobatch.forecast.laws.Laws",
    "isobatch.planning.plan.Plan",
    "isobatch.planning.settings.Rules",
    "isobatch.recipes.recipe.Recipe",
    "isobatch.schedules.schedule.Schedule",
    "isobatch.validate.report.Report",
)
"""The types that have a cell, where they are defined: naming them loads none."""


def register(shell: Any) -> None:
    """Registers the formatters of an IPython shell; nothing without one."""
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["text/html"]
    for name in TYPES:
        module, _, kind = name.rpartition(".")
        formatter.for_type_by_name(module, kind, html_of)


def html_of(value: Any) -> str | None:
    """Returns a value's cell; None without the extra `report`: the notebook then shows the text."""
    try:
        from isobatch.report import cells

        return cells.html_of(value)
    except ModuleNotFoundError:
        return None
