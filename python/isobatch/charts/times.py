"""Hours and cost over GPU counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isobatch.charts import theme

MOST_LINES = 6
"""Jobs that get a line each; of more, the middle and the range are drawn."""


def over_gpus(
    points: Sequence[dict[str, Any]],
    value: str,
    label: str,
    *,
    deadline: float | None = None,
    knees: Sequence[dict[str, Any]] = (),
) -> Any:
    """A figure of jobs over GPUs, both axes logarithmic.

    Args:
        points: rows with `job`, `gpus` and the figure, and `type` where lines of one job are of several GPU types; of more than
            MOST_LINES jobs, `low` and `high` beside it.
        value: the figure's name in the rows.
        label: the axis's title, with its unit.
        deadline: where a line is drawn across.
        knees: rows where a point is set.
    """
    import altair as alt

    x = alt.X("gpus:Q").scale(type="log", nice=False, base=2).title("GPUs").axis(tickCount=8, format=",d")
    y = alt.Y(f"{value}:Q").scale(type="log").title(label).axis(tickCount=6, format=",~g")
    jobs = list(dict.fromkeys(point["job"] for point in points))
    color = (
        alt.Color("job:N")
        .scale(domain=jobs, range=list(theme.SERIES[: len(jobs)]))
        .sort(jobs)
        .title(None)
        .legend(
            None
            if len(jobs) < 2
            else alt.Legend(
                symbolType="stroke",
                symbolOpacity=1,
                symbolStrokeWidth=2,
                columns=2,
                labelLimit=200,
                columnPadding=30,
            )
        )
    )
    base = alt.Chart(theme.rows(points)).encode(x=x)
    layers = []
    if any("low" in point for point in points):
        low, high = alt.Y("low:Q").title(label), alt.Y2("high:Q")
        layers.append(
            base.mark_area(opacity=0.2 if len(jobs) == 1 else 0.12).encode(y=low, y2=high, color=color)
        )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=24)).encode(y=y, color=color)
    types = list(dict.fromkeys(point["type"] for point in points if point.get("type")))
    if types:
        legend = alt.Legend(symbolType="stroke", symbolStrokeColor=theme.INK, orient="top", symbolSize=400)
        dash = alt.StrokeDash("type:N").scale(domain=types).sort(types).title(None).legend(legend)
        line = line.encode(strokeDash=dash)
    layers.append(line)
    if knees:
        marked = alt.Chart(theme.rows(knees)).encode(x=x, y=y)
        layers.append(marked.mark_point(shape="diamond", size=130, strokeWidth=2, color=theme.INK))
        layers.append(marked.mark_text(dy=-13, align="left", dx=6).encode(text="said:N"))
    if deadline is not None:
        limit = alt.Chart(theme.rows([{"at": deadline, "said": "deadline"}])).encode(y="at:Q")
        layers.append(limit.mark_rule(strokeDash=[6, 4], color=theme.STATUS["infeasible"]))
        layers.append(
            limit.mark_text(align="left", dx=4, dy=-6, color=theme.STATUS["infeasible"]).encode(
                x=alt.value(0), text="said:N"
            )
        )
    return alt.layer(*layers).properties(width=theme.WIDTH, height=theme.HEIGHT)


def statuses(counts: Sequence[dict[str, Any]]) -> Any:
    """How many rows have which status, a bar a name. What the names are says the heading: a title would stand on long ones.

    Args:
        counts: rows with `name`, `status` and `rows`.
    """
    import altair as alt

    order = list(theme.STATUS)
    names = list(dict.fromkeys(row["name"] for row in counts))
    return (
        alt.Chart(theme.rows([row | {"order": order.index(row["status"])} for row in counts]))
        .mark_bar()
        .encode(
            x=alt.X("rows:Q").title("rows").axis(tickMinStep=1),
            y=alt.Y("name:N").sort(names).title(None).axis(labelLimit=240),
            color=alt.Color("status:N").scale(domain=order, range=list(theme.STATUS.values())).title(None),
            order=alt.Order("order:Q"),
        )
        .properties(width=theme.WIDTH, height=max(60, 18 * len(names)))
    )
