"""How all charts look, and a chart as SVG or PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError
from isobatch.words import printable

if TYPE_CHECKING:
    import altair as alt

INK, MUTED, GRID, PAPER = "#1c2128", "#57606b", "#d5dbe1", "#ffffff"
SERIES = ("#0b5cad", "#c2500a", "#0f7b4e", "#8a3ea8", "#a3124f", "#5d6b00")
"""Colours of series, which people who confuse red and green tell apart by lightness too."""
STATUS = {"ok": "#0f7b4e", "caution": "#b07800", "infeasible": "#c2261f"}

VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    PAPER: "--paper",
    **{color: f"--series-{number}" for number, color in enumerate(SERIES)},
    STATUS["caution"]: "--caution",
    STATUS["infeasible"]: "--infeasible",
}
"""By which CSS variable a page replaces a colour, so that a chart is dark where the page is."""

WIDTH, HEIGHT = 620, 240

PICTURES = (".svg", ".png")
"""Suffixes of the files that a chart can be written to."""

FROM_0 = "datum.value == 0 ? '0' : datum.label"
"""Of an axis in thousands or millions, the label of 0 is 0."""

SMALL = "datum.value != 0 && abs(datum.value) < 0.001 ? format(datum.value, '~e') : datum.label"
"""Of an axis of learning rates: 3e-4, as people write it; 0.00015 would reach into the axis's title where the font is wide."""

_IDS = re.compile(r'(\bid="|url\(#|href="#)([\w-]+)')


def themed(chart: Any, title: str) -> Any:
    """A chart with its title, in our colours and sizes."""
    return (
        chart.properties(title=title, background=PAPER)
        .configure(font="system-ui, -apple-system, 'Segoe UI', sans-serif", aria=False, padding=8)
        .configure_title(anchor="start", color=INK, fontSize=14, fontWeight=600, offset=10)
        .configure_axis(
            labelColor=MUTED,
            titleColor=INK,
            gridColor=GRID,
            domainColor=MUTED,
            tickColor=MUTED,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_legend(
            labelColor=INK,
            titleColor=INK,
            labelFontSize=12,
            titleFontSize=12,
            orient="bottom",
            labelLimit=260,
            columnPadding=20,
            columns=3,
        )
        .configure_header(labelColor=INK, titleColor=INK)
        .configure_view(stroke=None)
        .configure_text(color=INK)
    )


def stacked(charts: Sequence[tuple[Any, str]], title: str) -> Any:
    """Charts with a title each, above each other."""
    import altair as alt

    titled = [chart.properties(title=printable(name)) for chart, name in charts]
    whole = titled[0]
    if len(titled) > 1:
        whole = alt.vconcat(*titled).resolve_scale(color="independent", strokeDash="independent")
    return themed(whole, printable(title))


def rows(values: Sequence[dict[str, Any]]) -> alt.Data:
    """Rows as a chart's data, within the chart."""
    import altair as alt

    return alt.Data(values=list(values))


def svg(chart: Any) -> str:
    """A chart as an SVG text that needs nothing else."""
    text = io.StringIO()
    chart.save(text, format="svg")
    return text.getvalue()


def png(drawn: str, *, scale: float = 2.0) -> bytes:
    """An SVG text as a PNG, `scale` pixels for each of its units."""
    import vl_convert

    made: bytes = vl_convert.svg_to_png(drawn, scale=scale)
    return made


def picture(path: str, drawn: str) -> bytes:
    """What a file holds that shows an SVG text: itself, or a PNG, by the file's suffix.

    Raises:
        InputError: the suffix is of neither.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix not in PICTURES:
        raise InputError(f"cannot tell the format: use {' or '.join(PICTURES)}", file=path)
    return png(drawn) if suffix == ".png" else drawn.encode()


def inline(drawn: str, name: str, described: str) -> str:
    """An SVG text for the middle of a page: named for readers who do not see it, in the page's colours, its ids its own.

    Args:
        drawn: the SVG text.
        name: a word that no other chart of the page has.
        described: what it shows, in words, for screen readers.
    """
    from html import escape

    text = drawn[drawn.index("<svg") :]
    text = _IDS.sub(lambda found: f"{found[1]}{name}-{found[2]}", text)
    for color, variable in VARIABLES.items():
        text = text.replace(f'"{color}"', f'"var({variable})"')
    head, _, body = text.partition(">")
    return f'{head} role="img" aria-label="{escape(described)}">{body}'
