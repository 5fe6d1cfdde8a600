"""Figures as pictures: from plain numbers to an Altair chart, and its SVG or PNG. Plans are unknown here."""

import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from isobatch.errors import InputError
from isobatch.system import LazyModule
from isobatch.words import printable

if TYPE_CHECKING:
    import altair as alt
else:
    alt = LazyModule("altair")

Rows: TypeAlias = Sequence[dict[str, Any]]
Limit: TypeAlias = tuple[str, float | None]
"""A limit of a figure: its name, and its value; None: there is none."""

INK, MUTED, GRID, PAPER = "#1c2128", "#57606b", "#d5dbe1", "#ffffff"
SERIES = ("#0b5cad", "#c2500a", "#0f7b4e", "#8a3ea8", "#a3124f", "#5d6b00")
"""Colours of series, which people who confuse red and green tell apart by lightness too."""
_SHAPES = ("circle", "square", "triangle-up", "cross", "triangle-down", "triangle-left")
"""Points of series, which tell them apart without colours."""
LEVELS = {"ok": "#0f7b4e", "note": "#85c4a6", "caution": "#e0a100", "infeasible": "#c2261f"}
"""Colours of levels, which differ in lightness; the bars of what is infeasible are hollow."""

VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    PAPER: "--paper",
    **{color: f"--series-{number}" for number, color in enumerate(SERIES)},
    LEVELS["note"]: "--note-mark",
    LEVELS["caution"]: "--caution-mark",
    LEVELS["infeasible"]: "--infeasible",
}
"""By which CSS variable a page replaces a colour, so that a chart is dark where the page is."""

WIDTH, HEIGHT = 620, 240
BARS, _BAR = 290, 18
"""Widths of a chart of bars, which a phone shows whole, and of the bar of a sample."""
MAX_LINES = 6
"""Lines of one chart: as many as there are colours."""
PICTURES = (".svg", ".png")
"""Suffixes of the files that a chart can be written to."""

_FROM_0 = "datum.value == 0 ? '0' : datum.label"
"""Of an axis in thousands or millions, the label of 0 is 0."""
_SMALL = "datum.value != 0 && abs(datum.value) < 0.001 ? format(datum.value, '~e') : datum.label"
"""Writes learning rates on an axis as 3e-4: 0.00015 would reach into its title where the font is wide."""
_ROLES = re.compile(r' (?:role="graphics-\w+"|aria-roledescription="[^"]*")')
"""Vega's roles of marks without a name; the whole picture has one."""
_IDS = re.compile(r'(\bid="|url\(#|href="#)([\w-]+)')


# ---- the charts ----


def _chart(rows: Rows) -> Any:
    return alt.Chart(alt.Data(values=list(rows)))


def _gpus() -> Any:
    """Makes the axis of GPU counts."""
    return alt.X("gpus:Q").scale(type="log", nice=False, base=2).title("GPUs").axis(tickCount=8, format=",d")


def _ends(values: Sequence[float]) -> list[float]:
    """Returns the ends of a logarithmic axis: whole decades would press the data into a strip."""
    return [min(values) / 1.3, max(values) * 1.3]


def _color(field: str, rows: Rows) -> Any:
    """Gives each value a colour in order of appearance; no legend of a single one."""
    values = list(dict.fromkeys(row[field] for row in rows))
    color = alt.Color(f"{field}:N").scale(domain=values, range=list(SERIES[: len(values)])).sort(values)
    return color.title(None) if len(values) > 1 else color.legend(None)


def _names(field: str, names: Sequence[str]) -> Any:
    """Makes the axis of named bars, with room for a phone's letters, a third larger."""
    room = min(220, 10 * max(map(len, names)) + 4)
    return alt.Y(f"{field}:N").sort(list(names)).title(None).axis(labelLimit=160, minExtent=room)


def over_run(points: Rows, axis: str, label: str) -> Any:
    """Draws a line for each run: rows with `run`, `at`, `lr` or `batch`, and the figure of the axis."""
    y = alt.Y("lr:Q").title("learning rate").axis(tickCount=5, format="~g", labelExpr=_SMALL, minExtent=50)
    if "batch" in points[0]:
        y = alt.Y("batch:Q").title("samples per step").axis(tickCount=5, format="~s", labelExpr=_FROM_0)
    x = alt.X(f"{axis}:Q").title(label).scale(nice=False)
    lines = _chart(points).encode(
        x=x.axis(tickCount=6, format="~s", labelExpr=_FROM_0),
        y=y,
        order=alt.Order("at:Q"),
        color=_color("run", points),
    )
    runs = list(dict.fromkeys(point["run"] for point in points))
    if len(runs) > 1:
        dash = alt.StrokeDash("run:N").scale(domain=runs, range=[[], [7, 4]]).title(None)
        lines = lines.encode(strokeDash=dash)
    stairs = {"interpolate": "step-after"} if "batch" in points[0] else {}
    return lines.mark_line(strokeWidth=2, **stairs).properties(width=WIDTH, height=180)


def held(spans: Rows, *, legend: bool) -> Any:
    """Draws the holders of GPUs over time: a `kind`, hours `start` to `end`, rows of GPUs `low` to `high`."""
    color = _color("kind", spans)
    tall = max(span["high"] for span in spans)
    x = alt.X("start:Q").title("hours").scale(nice=False).axis(grid=False, tickCount=8, format="~g")
    y = alt.Y("low:Q").scale(domain=[tall, 0], nice=False).title("GPUs, node by node")
    bands = _chart(spans).encode(x=x, x2="end:Q", y=y.axis(format="d", grid=False), y2="high:Q")
    bands = bands.encode(color=color if legend else color.legend(None))
    return bands.mark_rect(stroke=PAPER, strokeWidth=0.4).properties(width=WIDTH, height=2 * HEIGHT)


def over_gpus(points: Rows, value: str, label: str, *, limit: Limit, knees: Rows) -> Any:
    """Draws a figure of jobs over GPUs, both axes logarithmic: `job`, `gpus`, the figure, `low` and `high`.

    A limit is a line across, and a knee has a point.
    """
    x, values = _gpus(), [point[name] for point in points for name in ("low", "high")]
    scale = {"type": "log", "nice": False, "domain": _ends([*values, *filter(None, limit[1:])])}
    y = alt.Y(f"{value}:Q").scale(**scale).title(label).axis(tickCount=6, format=",~g")
    color, jobs = _color("job", points), list(dict.fromkeys(point["job"] for point in points))
    shape = alt.Shape("job:N").scale(domain=jobs, range=list(_SHAPES[: len(jobs)])).title(None)
    if len(jobs) > 1:
        # A phone's letters are a third larger.
        columns = {"columns": 1, "labelLimit": 400, "rowPadding": 6, "symbolSize": 70, "symbolOpacity": 1}
        color, shape = (channel.legend(alt.Legend(**columns)) for channel in (color, shape))
    else:
        shape = shape.legend(None)
    base = _chart(points).encode(x=x, y=y, color=color)
    marks = base.mark_point(filled=True, size=36, opacity=1).encode(shape=shape)
    layers = [base.mark_line(strokeWidth=2), marks]
    if any(point["low"] < point["high"] for point in points):
        layers.insert(0, base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q"), y2="high:Q"))
    if knees:
        marked = _chart([knee | {"text": "knee"} for knee in knees]).encode(x=x, y=y)
        layers.append(marked.mark_point(shape="diamond", size=130, strokeWidth=2, color=INK))
        is_last = max(knee["gpus"] for knee in knees) == max(point["gpus"] for point in points)
        align, away = ("right", -6) if is_last else ("left", 6)
        layers.append(marked.mark_text(dy=-13, align=align, dx=away).encode(text="text:N"))
    if limit[1] is not None:
        line, red = _chart([{"text": limit[0], "at": limit[1]}]).encode(y="at:Q"), LEVELS["infeasible"]
        text = line.mark_text(align="left", dx=4, dy=-6, color=red)
        layers.append(line.mark_rule(strokeDash=[6, 4], color=red))
        layers.append(text.encode(x=alt.value(0), text="text:N"))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def by_cluster(points: Rows, value: str, label: str, *, limit: Limit) -> Any:
    """Draws a bar for each cluster of each job: rows with `job`, `cluster`, figure, `low` and `high`."""
    rows, marked_by = [], "" if limit[1] is None else f" (dashed: the {limit[0]})"
    for number, job in enumerate(dict.fromkeys(point["job"] for point in points)):
        own = [point for point in points if point["job"] == job]
        y = _names("cluster", [point["cluster"] for point in own])
        x = alt.X(f"{value}:Q").title(f"{label}{marked_by}").axis(tickCount=5, format=",.12~g")
        base = _chart(own).encode(y=y)
        layers = [base.mark_bar(color=SERIES[number % len(SERIES)]).encode(x=x)]
        if any(point["low"] < point["high"] for point in own):
            layers.append(base.mark_rule(strokeWidth=2, color=INK).encode(x="low:Q", x2="high:Q"))
        if limit[1] is not None:
            line = _chart([{"at": limit[1]}]).encode(x="at:Q")
            layers.append(line.mark_rule(strokeDash=[6, 4], color=LEVELS["infeasible"]))
        rows.append(alt.layer(*layers).properties(title=job, width=BARS, height=18 * len(own)))
    return alt.vconcat(*rows) if len(rows) > 1 else rows[0]


def rates(points: Rows) -> Any:
    """Draws learning rates over the batch, relative to the tuned run: rows with `rule`, `k`, `factor`."""
    x = alt.X("k:Q").scale(type="log", base=2, nice=False).title("batch, times the tuned one")
    y = alt.Y("factor:Q").scale(type="log", base=2).title("learning rate, times the tuned one")
    lines = _chart(points).mark_line(strokeWidth=2)
    lines = lines.encode(x=x.axis(format="~g"), y=y.axis(format="~g"), color=_color("rule", points))
    return lines.properties(width=WIDTH, height=HEIGHT)


def steps_over_gpus(points: Rows, value: str, label: str) -> Any:
    """Draws a figure at each GPU count, both axes logarithmic: rows with `gpus` and the figure."""
    ends = _ends([point[value] for point in points])
    axis = {"format": ",~g"} if ends[1] > 1 else {"format": "~g", "labelExpr": _SMALL}
    y = alt.Y(f"{value}:Q").scale(type="log", nice=False, domain=ends).title(label).axis(tickCount=5, **axis)
    marks = _chart(points).mark_point(filled=True, size=36, opacity=1)
    return marks.encode(x=_gpus(), y=y).properties(width=WIDTH, height=180)


def levels(counts: Rows) -> Any:
    """Draws the rows of each level, a bar a name: rows with `name`, `level` and `rows`."""
    order, names = list(LEVELS), list(dict.fromkeys(row["name"] for row in counts))
    shown = [level for level in order if level in {row["level"] for row in counts}]
    colors = {"domain": shown, "range": [LEVELS[level] for level in shown]}
    opacities = {"domain": shown, "range": [0.15 if level == "infeasible" else 1 for level in shown]}
    bars = _chart([row | {"order": order.index(row["level"])} for row in counts]).mark_bar(strokeWidth=1)
    most = max(sum(row["rows"] for row in counts if row["name"] == name) for name in names)
    return bars.encode(
        x=alt.X("rows:Q").title("rows").axis(tickCount=min(most, 6), format=",d"),
        y=_names("name", names),
        fill=alt.Fill("level:N").scale(**colors).title(None),
        stroke=alt.Stroke("level:N").scale(**colors).title(None),
        fillOpacity=alt.FillOpacity("level:N").scale(**opacities).title(None),
        order=alt.Order("order:Q"),
    ).properties(width=BARS, height=max(60, 18 * len(names)))


def all_reduce(points: Rows) -> Any:
    """Draws times of an all-reduce over its size: rows with `kind`, `bytes` and `time_us`."""
    lines = _chart(points).mark_line(point=True)
    return lines.encode(
        x=alt.X("bytes:Q").scale(type="log").title("array, bytes").axis(tickCount=6, format="~s"),
        y=alt.Y("time_us:Q").scale(type="log").title("time, µs").axis(tickCount=5, format="~s"),
        color=_color("kind", points),
    ).properties(width=WIDTH, height=HEIGHT)


def sample_weights(points: Rows) -> Any:
    """Draws the weight of each sample, a row of bars a split: rows with `split`, `sample` and `weight`."""
    splits = list(dict.fromkeys(point["split"] for point in points))
    width = min(WIDTH, max(BARS, _BAR * sum(point["split"] == splits[0] for point in points)))
    unit = _chart([{"weight": 1}]).mark_rule(color=INK, strokeDash=[4, 3]).encode(y="weight:Q")
    rows = []
    for split in splits:
        bars = _chart([point for point in points if point["split"] == split]).mark_bar(color=SERIES[0])
        x = alt.X("sample:O").title("sample of the step").axis(labelAngle=0, labelOverlap=True)
        y = alt.Y("weight:Q").title(None).axis(tickCount=4)
        rows.append((bars.encode(x=x, y=y) + unit).properties(title=split, width=width, height=80))
    return alt.vconcat(*rows).resolve_scale(y="shared")


# ---- how they look, and their pictures ----


def marked(chart: Any, gpus: float, ends: tuple[float, float]) -> Any:
    """Marks a GPU count in a chart over GPUs, `ends` its axis; the page's script moves line and name."""
    align, away = ("right", -5) if gpus**2 > ends[0] * ends[1] else ("left", 5)
    base = _chart([{"gpus": gpus, "text": f"{gpus:,.0f} GPUs"}]).encode(x=_gpus().scale(domain=ends))
    line = base.mark_rule(color=SERIES[1], strokeWidth=2).properties(name="chosen_line")
    text = base.mark_text(align=align, dx=away, color=SERIES[1], fontWeight=600, baseline="top")
    return chart + line + text.encode(y=alt.value(2), text="text:N").properties(name="chosen_text")


def themed(chart: Any, title: str) -> Any:
    """Gives a chart its title, and our colours and sizes."""
    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
    axis = {"labelColor": MUTED, "domainColor": MUTED, "tickColor": MUTED, "titleFontWeight": "normal"}
    return (
        chart.properties(title=printable(title), background=PAPER)
        .configure(font="system-ui, -apple-system, 'Segoe UI', sans-serif", aria=False, padding=8)
        .configure_title(anchor="start", color=INK, fontSize=14, fontWeight=600, offset=10)
        .configure_axis(**{**text, **axis}, gridColor=GRID)
        .configure_legend(**text, orient="bottom", labelLimit=260, columnPadding=32, columns=3)
        .configure_view(stroke=None)
        .configure_text(color=INK)
    )


def svg(chart: Any) -> str:
    """Returns a chart as a self-contained SVG text."""
    text = io.StringIO()
    chart.save(text, format="svg")
    return text.getvalue()


def picture(path: str, drawn: str) -> bytes:
    """Returns the bytes of a picture file by its suffix: the SVG text, or a PNG at twice its size."""
    suffix = PurePath(path).suffix.lower()
    if suffix not in PICTURES:
        raise InputError(f"cannot tell the format: use {' or '.join(PICTURES)}", file=path)
    if suffix == ".svg":
        return drawn.encode()
    import vl_convert

    png: bytes = vl_convert.svg_to_png(drawn, scale=2.0)
    return png


def inline(drawn: str, name: str, described: str) -> str:
    """Prepares an SVG for the middle of a page: with the page's colours, and ids that begin with a `name`."""
    text = drawn[drawn.index("<svg") :]
    text = _ROLES.sub("", _IDS.sub(lambda match: f"{match[1]}{name}-{match[2]}", text))
    for color, variable in VARIABLES.items():
        text = text.replace(f'"{color}"', f'"var({variable})"')
    head, _, body = text.partition(">")
    return f'{head} role="img" aria-label="{escape(described)}">{body}'
