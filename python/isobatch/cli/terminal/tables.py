"""Tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from isobatch.words import printable


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table to stdout: by rich on a terminal that has it, else as aligned text. Cells are shown as they are: what looks
    like markup or controls the terminal is text too."""
    headers = [printable(name) for name in headers]
    rows = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text
        except ModuleNotFoundError:
            pass
        else:
            table = Table()
            for name in headers:
                table.add_column(Text(name))
            for row in rows:
                table.add_row(*map(Text, row))
            Console().print(table)
            return
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
