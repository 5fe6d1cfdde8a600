"""The rows of a fleet on stdout: a table on a terminal, else CSV, or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isobatch import words
from isobatch.cli.terminal.messages import say
from isobatch.cli.terminal.tables import show_table
from isobatch.errors import unwritable

SHOWN = 40
"""Rows that a terminal gets to see."""

_USUAL = (
    "job",
    "cluster",
    "status",
    "micro_batch",
    "accumulation",
    "effective_batch",
    "lr",
    "total_steps",
    "reasons",
)
"""Columns that a terminal gets to see where nobody asked for others."""
_SPARE = ("total_steps", "lr", "effective_batch", "accumulation", "micro_batch", "reasons")
"""Those which a narrow one does without, in this order."""


@contextmanager
def rows_to_stdout(
    columns: tuple[str, ...] | None, *, json: bool, escape_formulas: bool
) -> Iterator[Callable[[Any], None]]:
    """A function that writes tables of rows; `columns` are those that were asked for.

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
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise unwritable(error, "stdout") from None


class Screen:
    """The first rows as a table, and how many more there are."""

    def __init__(self, columns: tuple[str, ...] | None) -> None:
        self.columns = columns
        self.first: Any = None
        self.rows = 0

    def __call__(self, table: Any) -> None:
        """Takes the next rows."""
        if self.first is None:
            self.first = table.slice(0, SHOWN)
        elif self.first.num_rows < SHOWN:
            import pyarrow as pa

            self.first = pa.concat_tables([self.first, table.slice(0, SHOWN - self.first.num_rows)])
        self.rows += table.num_rows

    def close(self) -> None:
        """Shows them."""
        if self.first is None:
            return
        every = self.first.column_names
        names = list(self.columns or [name for name in _USUAL if name in every] or every)
        names = show_table(
            names,
            [[cell(row[name]) for name in names] for row in self.first.select(names).to_pylist()],
            spare=() if self.columns else _SPARE,
        )
        if self.rows > SHOWN or len(names) < len(every):
            say(
                f"showing {min(self.rows, SHOWN):,} of {words.counted(self.rows, 'row')}, {len(names)} of "
                f"{words.counted(len(every), 'column')}; use -o FILE for all"
            )


def cell(value: Any) -> str:
    """A value of a plan in a table."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return words.real(value) if isinstance(value, float) else str(value)
