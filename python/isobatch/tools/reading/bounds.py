"""What a file may cost. Files come from anywhere."""

from __future__ import annotations

from typing import Any

from isobatch.errors import InputError

MAX_BYTES = 4 << 20
MAX_DEPTH = 50
MAX_NODES = 200_000
MAX_MERGES = 20
MAX_FILES = 50
"""That one configuration builds on, one after the other."""


def check_size(data: Any, file: str) -> None:
    """Refuses what is too deep, or too large: what aliases of YAML expand to, counted once for each value and without walking it again.

    Raises:
        InputError: it is.
    """
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(value: Any, depth: int) -> int:
        if not isinstance(value, dict | list | tuple):
            return 1
        if id(value) in sizes:
            return sizes[id(value)]
        if id(value) in open_ or depth > MAX_DEPTH:
            raise InputError(f"is nested deeper than {MAX_DEPTH} levels", file=file)
        open_.add(id(value))
        inner = value.values() if isinstance(value, dict) else value
        total = 1 + sum(size(item, depth + 1) for item in inner)
        open_.discard(id(value))
        sizes[id(value)] = total
        return total

    if size(data, 0) > MAX_NODES:
        raise InputError(f"holds more than {MAX_NODES:,} values", file=file)
