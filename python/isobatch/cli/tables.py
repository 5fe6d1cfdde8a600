"""Tables on a terminal, and the rows of a fleet on stdout: words are never cut, identifiers stay whole, and nothing is wider than the screen."""

import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from isobatch.cli.terminal import fitted, has_colours, paint, say
from isobatch.errors import unwritable
from isobatch.words import counted, printable, real

_GAP = 2
_COLOURED = ("status", "verdict", "deadline")
_NUMBER = re.compile(r"[^\w\s]?-?[\d,.]+(e-?\d+)?( %)?")


def show_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()
) -> list[str]:
    """Prints a table to stdout. Cells are shown as they are: what looks like markup or controls the terminal is text too.

    On a terminal that is too narrow texts go over several lines, between words; then the columns in `spare` are left out, the
    first of them first; where that is not enough, each row is a block of lines of its own.

    Returns:
        The names of the columns that are shown.
    """
    names = [printable(name) for name in headers]
    cells = [[printable(cell) for cell in row] for row in rows]
    colours, on_terminal = has_colours(sys.stdout), sys.stdout.isatty()
    room = shutil.get_terminal_size().columns if on_terminal else 0
    kept = list(range(len(names)))
    widths = _widths(names, cells, kept, room)
    for name in spare:
        if widths is not None:
            break
        if name in headers:
            kept.remove(list(headers).index(name))
            widths = _widths(names, cells, kept, room)
    if widths is None:
        _blocks(names, cells, colours, room)
        return list(headers)
    # In a pipe nothing is set right: what reads it knows the columns' places.
    numeric = {at for at in kept if on_terminal and _is_numeric([row[at] for row in cells])}
    for number, row in enumerate((names, *cells)):
        for line in _lines(row, kept, widths, numeric):
            styled = [_styled(text, names[at], row[at], number == 0, colours) for at, text in line]
            print((" " * _GAP).join(styled).rstrip())
    return [headers[at] for at in kept]


def _is_numeric(texts: Sequence[str]) -> bool:
    return any(texts) and all(_NUMBER.fullmatch(text) or not text for text in texts)


def _width(text: str) -> int:
    """Counts the columns of a terminal under a text: East Asian wide characters take two, marks on others none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _widths(
    names: Sequence[str], cells: Sequence[Sequence[str]], kept: Sequence[int], room: int
) -> dict[int, int] | None:
    """Fits each kept column's width into the room (0: any); None where they cannot without cutting a word."""
    columns = {at: [names[at], *(row[at] for row in cells)] for at in kept}
    widths = {at: max(map(_width, texts)) for at, texts in columns.items()}
    over = sum(widths.values()) + _GAP * (len(kept) - 1) - room
    if not room or over <= 0:
        return widths
    least = {
        at: max(_width(word) for text in texts for word in text.split() or [""])
        for at, texts in columns.items()
    }
    while over > 0:
        loose = [at for at in kept if widths[at] > least[at]]
        if not loose:
            return None
        # The widest gives way.
        widths[max(loose, key=widths.__getitem__)] -= 1
        over -= 1
    return widths


def _lines(
    row: Sequence[str], kept: Sequence[int], widths: dict[int, int], numeric: set[int]
) -> list[list[tuple[int, str]]]:
    """A row's lines: each a text for each column, filled up to its width."""
    wrapped = {
        at: [row[at]]
        if _width(row[at]) <= widths[at]
        else textwrap.wrap(row[at], widths[at], break_long_words=False, break_on_hyphens=False)
        for at in kept
    }
    lines = []
    for number in range(max(map(len, wrapped.values()), default=1)):
        line = []
        for at in kept:
            text = wrapped[at][number] if number < len(wrapped[at]) else ""
            space = " " * (widths[at] - _width(text))
            line.append((at, space + text if at in numeric else text + space))
        lines.append(line)
    return lines


def _styled(text: str, name: str, value: str, heading: bool, colours: bool) -> str:
    style = "heading" if heading else value if name in _COLOURED else ""
    if not colours or not style:
        return text
    bare = text.strip()
    return text.replace(bare, paint(bare, style)) if bare else text


def _blocks(names: Sequence[str], cells: Sequence[Sequence[str]], colours: bool, room: int) -> None:
    """Each row as lines of a name and its value."""
    width = max(map(_width, names), default=0)
    for number, row in enumerate(cells):
        if number:
            print()
        for name, value in zip(names, row, strict=True):
            head = name + " " * (width - _width(name) + _GAP)
            shown = paint(value, value) if colours and name in _COLOURED else value
            print((head + ("\n" + " " * len(head)).join(fitted(shown, room - len(head)))).rstrip())


# ---- rows of a fleet ----

SHOWN = 40
"""Rows that a terminal gets to see."""

_USUAL = (
    "job", "cluster", "status", "micro_batch", "accumulation", "effective_batch", "lr", "total_steps", "reasons",
)  # fmt: skip
"""Columns that a terminal gets to see where nobody asked for others."""
_SPARE = ("total_steps", "lr", "effective_batch", "accumulation", "micro_batch", "reasons")
"""Those which a narrow one does without, in this order."""


@contextmanager
def rows_to_stdout(
    columns: tuple[str, ...] | None, *, json: bool = False, escape_formulas: bool = False
) -> Iterator[Callable[[Any], None]]:
    """Yields a function to write tables of rows; `columns` are those asked for.

    Raises:
        InputError: a column cannot be written as text.
    """
    import pyarrow as pa

    from isobatch.files.write import CsvLines, JsonLines

    try:
        if json:
            yield JsonLines(sys.stdout.buffer)
        elif sys.stdout.isatty():
            screen = Screen(columns)
            yield screen
            screen.close()
        else:
            yield CsvLines(sys.stdout.buffer, escape_formulas=escape_formulas)
    except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise unwritable(error, "stdout") from None


class Screen:
    """The first rows as a table, and how many more there are."""

    def __init__(self, columns: tuple[str, ...] | None) -> None:
        self.columns, self.rows = columns, 0
        self.first: list[Any] = []

    def __call__(self, table: Any) -> None:
        """Takes the next rows."""
        if self.rows < SHOWN:
            self.first.append(table.slice(0, SHOWN - self.rows))
        self.rows += table.num_rows

    def close(self) -> None:
        """Shows them."""
        import pyarrow as pa

        if not self.first:
            return
        first = pa.concat_tables(self.first)
        every = first.column_names
        names = list(self.columns or [name for name in _USUAL if name in every] or every)
        names = show_table(
            names,
            [[cell(row[name]) for name in names] for row in first.select(names).to_pylist()],
            spare=() if self.columns else _SPARE,
        )
        if self.rows > SHOWN or len(names) < len(every):
            say(
                f"showing {min(self.rows, SHOWN):,} of {counted(self.rows, 'row')}, {len(names)} of "
                f"{counted(len(every), 'column')}; use -o FILE for all"
            )


def cell(value: Any) -> str:
    """A value of a plan in a table."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return real(value) if isinstance(value, float) else str(value)
