"""Single figures beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isobatch.charts import theme


def by_count(rows: Sequence[dict[str, Any]], counts: Sequence[int]) -> Any:
    """Two figures at each GPU count: rows with `gpus`, `part` and `value`."""
    import altair as alt

    return (
        alt.Chart(theme.rows(rows))
        .mark_point(filled=True, size=50)
        .encode(
            x=alt.X("gpus:N")
            .sort([str(count) for count in counts])
            .title("GPUs")
            .axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("value:Q").scale(type="log", base=2).title("samples, or passes").axis(format=",d"),
            color=alt.Color("part:N").scale(range=list(theme.SERIES[:2])).title(None),
            shape=alt.Shape("part:N").title(None),
        )
        .properties(width=theme.WIDTH, height=theme.HEIGHT)
    )


def by_name(rows: Sequence[dict[str, Any]]) -> Any:
    """Figures by the name of who found them, a panel for each quantity: rows with `quantity`, `name` and `value`."""
    import altair as alt

    panels = []
    for quantity in dict.fromkeys(row["quantity"] for row in rows):
        own = [row for row in rows if row["quantity"] == quantity]
        x = alt.X("value:Q").scale(zero=True).title(quantity).axis(format="~g", tickCount=5)
        bars = alt.Chart(theme.rows(own)).mark_bar(height=14, color=theme.SERIES[0])
        panels.append(
            bars.encode(x=x, y=alt.Y("name:N").title(None)).properties(
                width=theme.WIDTH, height=24 * len(own)
            )
        )
    return alt.vconcat(*panels)
