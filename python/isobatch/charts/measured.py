"""What a validation measured, beside what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isobatch.charts import theme


def all_reduce(points: Sequence[dict[str, Any]], fits: Sequence[dict[str, Any]]) -> Any:
    """Times of an all-reduce over its size, and the fitted lines: rows with `kind`, `bytes` and `time_us`."""
    import altair as alt

    kinds = list(dict.fromkeys(point["kind"] for point in points))
    color = alt.Color("kind:N").scale(domain=kinds, range=list(theme.SERIES[: len(kinds)])).title(None)
    x = alt.X("bytes:Q").scale(type="log").title("array, bytes").axis(tickCount=6, format="~s")
    y = alt.Y("time_us:Q").scale(type="log").title("time, µs").axis(tickCount=5, format="~s")
    dots = alt.Chart(theme.rows(points)).mark_point(filled=True, size=45).encode(x=x, y=y, color=color)
    lines = alt.Chart(theme.rows(fits)).mark_line(strokeDash=[6, 3]).encode(x=x, y=y, color=color)
    return alt.layer(lines, dots).properties(width=theme.WIDTH, height=theme.HEIGHT)


def step_parts(parts: Sequence[dict[str, Any]]) -> Any:
    """Seconds of a step, a bar for each way that it is known: rows with `bar`, `part`, `seconds` and `order`."""
    import altair as alt

    bars = list(dict.fromkeys(row["bar"] for row in parts))
    names = list(dict.fromkeys(row["part"] for row in sorted(parts, key=lambda row: int(row["order"]))))
    return (
        alt.Chart(theme.rows(parts))
        .mark_bar(height=22)
        .encode(
            x=alt.X("seconds:Q").title("seconds a step").axis(tickCount=6, format=",~g"),
            y=alt.Y("bar:N").sort(bars).title(None),
            color=alt.Color("part:N").scale(domain=names, range=list(theme.SERIES[: len(names)])).title(None),
            order=alt.Order("order:Q"),
        )
        .properties(width=theme.WIDTH, height=max(50, 34 * len(bars)))
    )
