"""The one exception that wrong input raises."""


class InputError(ValueError):
    """Input that cannot be used: says where it is and what would be legal.

    Attributes: ``file``, ``row`` (counted from 0), ``field``; each ``None`` where it does not apply.

    >>> str(InputError("is 0, must be at least 1", file="jobs.csv", row=3, field="effective_batch"))
    "jobs.csv, row 3, field 'effective_batch': is 0, must be at least 1"
    """

    def __init__(
        self, message: str, *, file: str | None = None, row: int | None = None, field: str | None = None
    ) -> None:
        self.file = file
        self.row = row
        self.field = field
        place = [
            *([file] if file is not None else []),
            *([f"row {row}"] if row is not None else []),
            *([f"field {field!r}"] if field is not None else []),
        ]
        super().__init__(f"{', '.join(place)}: {message}" if place else message)
