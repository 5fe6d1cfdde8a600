"""Tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table to stdout: by rich on a terminal that has it, else as aligned text."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ModuleNotFoundError:
            pass
        else:
            table = Table(*headers)
            for row in rows:
                table.add_row(*row)
            Console().print(table)
            return
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
