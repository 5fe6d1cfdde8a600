"""The error that every wrong use of isobatch raises."""

from __future__ import annotations


class InputError(ValueError):
    """An input that cannot be used. The message names the file, row and field where they are known.

    Attributes: `file`, `row` (1 is the first row after the header) and `field`, each None where it does not apply.

    >>> str(InputError("0 is not legal", file="jobs.csv", row=3, field="lr"))
    "jobs.csv, row 3, field 'lr': 0 is not legal"
    """

    def __init__(
        self, message: str, *, file: str | None = None, row: int | None = None, field: str | None = None
    ) -> None:
        self.message, self.file, self.row, self.field = message, file, row, field
        where = [file, f"row {row}" if row is not None else None, f"field {field!r}" if field else None]
        place = ", ".join(part for part in where if part)
        super().__init__(f"{place}: {message}" if place else message)
