"""A value's chart: SVG by default, so that a notebook draws it without a network."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from isobatch.charts import theme
from isobatch.errors import InputError
from isobatch.files.whole import write_whole
from isobatch.fleet.sweep import Sweep
from isobatch.report.frames import curve
from isobatch.report.write import needed, page_of_value
from isobatch.schedules import Schedule, extent
from isobatch.words import count, printable, real


class Plot(NamedTuple):
    """A chart: notebooks draw it as SVG, `save` writes it, and `chart` is the `altair.Chart` to change or to embed."""

    chart: Any

    def _repr_svg_(self) -> str:
        return theme.svg(self.chart)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, whole or not at all.

        Args:
            path: a file: .svg or .png.

        Raises:
            InputError: the name says neither, or it cannot be written.
        """
        name = os.fspath(path)
        write_whole(name, theme.picture(name, theme.svg(self.chart)))


def plot(value: Any, *, steps: float | None = None) -> Plot:
    """Draws a plan, a sweep, a schedule, a validation's report or a fleet's table.

    Args:
        value: what to draw: of a plan, a sweep, a report or a table the charts of its page.
        steps: where the curve of a schedule ends (default: with its run, or past what is interesting).

    Raises:
        InputError: the extra `report` is not installed, or there is nothing to draw.
    """
    needed()
    if isinstance(value, Schedule):
        return Plot(_schedule(value, extent.span(value.form) if steps is None else steps))
    page = page_of_value(value)
    if not page.drawings:
        why = (
            "the sweep has no times: pass a profile"
            if isinstance(value, Sweep)
            else "it is infeasible, or has no length"
        )
        raise InputError(f"there is nothing to draw: {why}")
    return Plot(theme.stacked([(each.chart, each.title) for each in page.drawings], page.title))


def _schedule(schedule: Schedule, stop: float) -> Any:
    from isobatch.charts.course import rates

    steps, values = curve(schedule, stop)
    points = [
        {"run": "schedule", "at": at, "step": step, "lr": lr}
        for at, (step, lr) in enumerate(zip(steps, values, strict=True))
    ]
    title = f"Learning rate {real(max(values))} at most, {count(round(stop))} steps"
    return theme.themed(rates(points, "step", "optimizer steps"), printable(title))
