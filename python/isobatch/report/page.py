"""What any page consists of, and the page as HTML: the kinds of input fill it, the templates know none of them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from isobatch import _core
from isobatch.words import printable

_LONGEST = 2_000
"""Characters of a text; what is longer is cut, as in a message."""


class Headline(NamedTuple):
    """A figure of the first lines: what it is, the figure with its unit, and what to know about it."""

    label: str
    value: str
    note: str = ""


class Table(NamedTuple):
    """A small table. `kinds` has "text", "number", "status" or "parts" (a line may break after a comma only) for
    each column."""

    caption: str
    headers: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    kinds: tuple[str, ...]


class Drawing(NamedTuple):
    """A chart of `isobatch.charts`, its title, and what it shows in words."""

    chart: Any
    title: str
    described: str


class Grid(NamedTuple):
    """A map: for each row a name and a cell for each column, each a status or a share of 1, and what it says."""

    caption: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str, str]]]]


class Rows(NamedTuple):
    """The table of all rows: packed for the script, and the first of them as text for readers without it."""

    caption: str
    names: Sequence[str]
    kinds: Sequence[str]
    packed: str
    total: int
    first: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class Section(NamedTuple):
    """A part of a page, with a heading of its own."""

    title: str
    lines: Sequence[str] = ()
    points: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    grid: Grid | None = None
    rows: Rows | None = None


class Page(NamedTuple):
    """What a page says, in order."""

    title: str
    lead: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]
    status: str = ""

    @property
    def drawings(self) -> list[Drawing]:
        """All charts of the page."""
        return [drawing for section in self.sections for drawing in section.drawings]


def _text(name: str) -> str:
    return files("isobatch.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def environment() -> Any:
    """The templates: all that they put in is escaped, and without characters that would turn or hide what is beside them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return (
            value if isinstance(value, Markup) or not isinstance(value, str) else printable(value, _LONGEST)
        )

    return Environment(
        loader=PackageLoader("isobatch.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def html(page: Page) -> str:
    """The page as one HTML text that needs no network, no font and no other file."""
    from markupsafe import Markup

    from isobatch.charts import theme

    charts: dict[int, Any] = {}
    for number, drawing in enumerate(page.drawings):
        drawn = theme.svg(theme.themed(drawing.chart, printable(drawing.title)))
        described = printable(f"{drawing.title}. {drawing.described}", _LONGEST)
        charts[id(drawing)] = Markup(theme.inline(drawn, f"chart-{number}", described))
    script = _text("table.js")
    found: str = (
        environment()
        .get_template("page.html")
        .render(
            page=page,
            charts=lambda drawing: charts[id(drawing)],
            style=Markup(_text("style.css")),
            script=Markup(script),
            # The browser runs this script and no other, whatever else may have got into the page.
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=_core.__version__,
        )
    )
    return found


def picture(page: Page) -> str:
    """The page's charts above each other, as one SVG text.

    Raises:
        InputError: it has none.
    """
    from isobatch.charts import theme
    from isobatch.errors import InputError

    if not page.drawings:
        raise InputError("there is nothing to draw: write an .html file")
    return theme.svg(theme.stacked([(each.chart, each.title) for each in page.drawings], page.title))
