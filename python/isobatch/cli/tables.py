"""Tables on stdout: by rich on a terminal, plain columns elsewhere; and the rows of a fleet."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from isobatch.cli.terminal import has_colours, paint, say
from isobatch.errors import unwritable
from isobatch.words import counted, printable, real

_GAP = 2
_COLOURED = ("status", "verdict", "deadline")
_NUMBER = re.compile(r"[^\w\s]?-?[\d,.]+(e-?\d+)?( %)?|")


def show_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()
) -> list[str]:
    """Prints a table to stdout, and returns the names of the columns shown.

    On a terminal that is too narrow texts go over several lines, between words; then the columns in `spare`
    are left out, the first of them first; where that is not enough, words are broken.
    """
    cells = {name: [printable(row[at]) for row in rows] for at, name in enumerate(map(printable, headers))}
    if sys.stdout.isatty():
        with suppress(ModuleNotFoundError):  # rich comes with an extra
            return _show_by_rich(cells, spare)
    widths = [max(map(len, (name, *texts))) for name, texts in cells.items()]
    for row in zip(*((name, *texts) for name, texts in cells.items()), strict=True):
        print((" " * _GAP).join(map(str.ljust, row, widths)).rstrip())
    return [*cells]


def _show_by_rich(cells: dict[str, list[str]], spare: Sequence[str]) -> list[str]:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    colours = has_colours(sys.stdout)
    console = Console(highlight=False, no_color=not colours)
    unlimited = console.options.update(width=1 << 16)
    for left_out in range(len(spare) + 1):
        shown = {name: texts for name, texts in cells.items() if name not in spare[:left_out]}
        table = Table(
            box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold" if colours else ""
        )
        for name, texts in shown.items():
            is_number = any(texts) and all(map(_NUMBER.fullmatch, texts))
            table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
        for row in zip(*shown.values(), strict=True):
            table.add_row(*(_styled(name, text, colours) for name, text in zip(shown, row, strict=True)))
        if Measurement.get(console, unlimited, table).minimum <= console.width:
            break
    console.print(table)
    return [*shown]


def _styled(name: str, text: str, colours: bool) -> Any:
    from rich.text import Text

    return Text.from_ansi(paint(text, text)) if colours and name in _COLOURED else Text(text)


# ---- rows of a fleet ----

SHOWN = 40
"""Rows that a terminal gets to see."""

_USUAL = (
    "job", "cluster", "status", "micro_batch", "accumulation", "effective_batch", "lr", "total_steps",
    "reasons",
)  # fmt: skip
"""Columns that a terminal gets to see where nobody asked for others."""
_SPARE = ("total_steps", "lr", "effective_batch", "accumulation", "micro_batch", "reasons")
"""Columns that a narrow terminal does without, in this order."""


@contextmanager
def rows_to_stdout(
    columns: tuple[str, ...] | None, *, json: bool = False, escape_formulas: bool = False
) -> Iterator[Callable[[Any], None]]:
    """Yields a function to write tables of rows; `columns` are those asked for."""
    import pyarrow as pa

    from isobatch.files.write import CsvLines, JsonLines

    try:
        if json:
            yield JsonLines(sys.stdout.buffer)
        elif sys.stdout.isatty():
            first: list[Any] = []
            rows = 0

            def take(table: Any) -> None:
                nonlocal rows
                if rows < SHOWN:
                    first.append(table.slice(0, SHOWN - rows))
                rows += table.num_rows

            yield take
            if first:
                _show_first(pa.concat_tables(first), rows, columns)
        else:
            yield CsvLines(sys.stdout.buffer, escape_formulas=escape_formulas)
    except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise unwritable(error, "stdout") from None


def _show_first(first: Any, rows: int, columns: tuple[str, ...] | None) -> None:
    """Shows the first rows as a table, and says how many more there are."""
    every = first.column_names
    names = list(columns or [name for name in _USUAL if name in every] or every)
    cells = [[cell(row[name]) for name in names] for row in first.select(names).to_pylist()]
    names = show_table(names, cells, spare=() if columns else _SPARE)
    if rows > SHOWN or len(names) < len(every):
        shown = (
            f"{min(rows, SHOWN):,} of {counted(rows, 'row')}, {len(names)} of {counted(len(every), 'column')}"
        )
        say(f"showing {shown}; use -o FILE for all")


def cell(value: Any) -> str:
    """A value of a plan in a table."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return real(value) if isinstance(value, float) else str(value)
