"""Names that are listed twice, of which readers keep the last in silence."""

from __future__ import annotations

from collections.abc import Iterable

from isobatch.words import shown


def refuse_doubles(names: Iterable[str]) -> None:
    """Refuses a table in which a name is listed twice.

    Raises:
        ValueError: naming the first.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{shown(name)} is listed twice")
        seen.add(name)
