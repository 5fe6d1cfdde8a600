"""The exception of bad input."""


class InputError(ValueError):
    """Something that was handed in cannot be used.

    The message names the file, row and field where they are known; each is also an attribute.

    >>> str(InputError("0 is not above 0", file="jobs.csv", row=3, field="lr"))
    "jobs.csv, row 3, field 'lr': 0 is not above 0"
    """

    def __init__(
        self, message: str, *, file: str | None = None, row: int | None = None, field: str | None = None
    ) -> None:
        self.file, self.row, self.field = file, row, field
        place = [] if file is None else [file]
        place += [] if row is None else [f"row {row}"]
        place += [] if field is None else [f"field '{field}'"]
        super().__init__(f"{', '.join(place)}: {message}" if place else message)
