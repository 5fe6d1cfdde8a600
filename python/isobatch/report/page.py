"""A page's parts, and the page as HTML: the kinds of input fill it, the templates know none of them."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from isobatch import _core
from isobatch.errors import InputError
from isobatch.report import charts
from isobatch.words import printable

SIGNS = {"ok": "✓", "note": "i", "caution": "!", "infeasible": "×", "none": ""}
"""Of a level, in a table of many."""
_MAX_CHARACTERS = 2_000
"""Of a text; what is longer is cut, as in a message."""


class Headline(NamedTuple):
    """A figure of the first lines, with its unit and a note."""

    label: str
    value: str
    note: str = ""


class HtmlTable(NamedTuple):
    """A table; the page's script sorts and searches a sortable one, one of a page.

    `columns` have a kind for each heading: "text", "number", "status", "sign" (a status by its sign) or
    "parts" (a line may break after a comma only).
    """

    caption: str
    columns: Mapping[str, str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    sortable: bool = False


def versions(by_name: Mapping[str, str]) -> HtmlTable:
    """Tables the versions of software."""
    return HtmlTable("Versions", {"software": "text", "version": "text"}, list(by_name.items()))


class Drawing(NamedTuple):
    """A chart, its title, and a description in words; `ends` if a page marks the chosen GPUs."""

    chart: Any
    title: str
    described: str
    ends: tuple[float, float] | None = None


class Section(NamedTuple):
    """A part of a page, with a heading of its own; a folded one shows the heading first."""

    title: str
    lines: Sequence[str] = ()
    points: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[HtmlTable] = ()
    folded: bool = False


class HtmlPage(NamedTuple):
    """A page from top to bottom; `choices` are the plans of a slider."""

    title: str
    lead: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]
    status: str = ""
    choices: Any = None

    @property
    def drawings(self) -> list[Drawing]:
        """All charts of the page."""
        return [drawing for section in self.sections for drawing in section.drawings]


def template(name: str) -> str:
    """Reads a template, a script or a style."""
    return files("isobatch.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def environment() -> Any:
    """Loads the templates: values are escaped, without characters that hide or reverse text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        is_plain = isinstance(value, str) and not isinstance(value, Markup)
        return printable(value, _MAX_CHARACTERS) if is_plain else value

    return Environment(
        loader=PackageLoader("isobatch.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def html(page: HtmlPage) -> str:
    """Renders the page as one HTML text without network, fonts or other files."""
    from markupsafe import Markup

    pictures: dict[int, Any] = {}
    for number, drawing in enumerate(page.drawings):
        chart = drawing.chart
        if page.choices and drawing.ends:
            chart = charts.marked(chart, page.choices.start, drawing.ends)
        drawn = charts.svg(charts.themed(chart, drawing.title))
        described = printable(f"{drawing.title}. {drawing.described}", _MAX_CHARACTERS)
        pictures[id(drawing)] = Markup(charts.inline(drawn, f"chart-{number}", described))
    script = template("table.js") + (template("choices.js") if page.choices else "")
    rendered: str = (
        environment()
        .get_template("page.html")
        .render(
            page=page,
            charts=lambda drawing: pictures[id(drawing)],
            signs=SIGNS,
            # In a script element only "<" could end its text.
            data=Markup(page.choices.data.replace("<", "\\u003c") if page.choices else ""),
            style=Markup(template("style.css") + (template("choices.css") if page.choices else "")),
            script=Markup(script),
            # The browser runs this script and no other, whatever else may have got into the page.
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=_core.__version__,
        )
    )
    return rendered


def picture(page: HtmlPage, why: str = "write an .html file") -> Any:
    """Puts the page's charts above each other, as one chart."""
    if not page.drawings:
        raise InputError(f"there is nothing to draw: {why}")
    import altair as alt

    titled = [drawing.chart.properties(title=printable(drawing.title)) for drawing in page.drawings]
    whole = alt.vconcat(*titled).resolve_scale(color="independent", strokeDash="independent")
    return charts.themed(whole if len(titled) > 1 else titled[0], page.title)
