"""What changes during a run: the learning rate and the batch, over steps, samples or time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isobatch.charts import theme


def rates(points: Sequence[dict[str, Any]], axis: str, label: str) -> Any:
    """Learning rates over an axis, a line for each run.

    Args:
        points: rows with `run`, `lr` and the axis's figure.
        axis: its name in the rows.
        label: the axis's title, with its unit.
    """
    import altair as alt

    return (
        alt.Chart(theme.rows(points))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X(f"{axis}:Q")
            .title(label)
            .scale(nice=False)
            .axis(tickCount=6, format="~s", labelExpr=theme.FROM_0),
            y=alt.Y("lr:Q")
            .title("learning rate")
            .axis(tickCount=5, format="~g", labelExpr=theme.SMALL, minExtent=50),
            order=alt.Order("at:Q"),
            **_by_run(points),
        )
        .properties(width=theme.WIDTH, height=180)
    )


def batches(points: Sequence[dict[str, Any]]) -> Any:
    """Batches over optimizer steps, in stages: rows with `run`, `step` and `batch`."""
    import altair as alt

    return (
        alt.Chart(theme.rows(points))
        .mark_line(strokeWidth=2, interpolate="step-after")
        .encode(
            x=alt.X("step:Q")
            .title("optimizer steps")
            .scale(nice=False)
            .axis(tickCount=6, format="~s", labelExpr=theme.FROM_0),
            y=alt.Y("batch:Q")
            .title("samples per step")
            .axis(tickCount=5, format="~s", labelExpr=theme.FROM_0),
            order=alt.Order("at:Q"),
            **_by_run(points),
        )
        .properties(width=theme.WIDTH, height=150)
    )


def _by_run(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A run's colour and dashes."""
    import altair as alt

    runs = list(dict.fromkeys(point["run"] for point in points))
    color = alt.Color("run:N").scale(domain=runs, range=list(theme.SERIES[: len(runs)]))
    if len(runs) < 2:
        return {"color": color.legend(None)}
    dashes = [[], [7, 4], [2, 3], [8, 3, 2, 3], [1, 2], [12, 4]]
    return {
        "color": color.title(None),
        "strokeDash": alt.StrokeDash("run:N").scale(domain=runs, range=dashes[: len(runs)]).title(None),
    }
