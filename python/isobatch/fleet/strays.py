"""Columns that are no fields: they are carried along, and one that looks like a slip is said."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable

from isobatch.nearest import nearest
from isobatch.words import few, printable

_CLOSE = 0.82
"""How alike two names must be, from 0 to 1, for one to be taken for a slip of the other."""


def note(names: Iterable[str], fields: Collection[str]) -> str | None:
    """What is said of columns that are no fields; None where all are.

    >>> note(["lr", "team", "weight_dcay"], ["lr", "weight_decay"])
    'not fields, carried along: team, weight_dcay (weight_decay?)'
    """
    strays = [name for name in names if name not in fields]
    if not strays:
        return None
    hinted = []
    for name in strays:
        close = nearest(name, fields, _CLOSE)
        hinted.append(f"{printable(name, 80)} ({close}?)" if close else printable(name, 80))
    return f"not fields, carried along: {few(hinted, 20)}"


def warn(names: Iterable[str], fields: Collection[str]) -> None:
    """Warns of those that look like a slip."""
    slips = [name for name in names if name not in fields and nearest(name, fields, _CLOSE)]
    if slips:
        warnings.warn(note(slips, fields) or "", stacklevel=_callers())


def _callers() -> int:
    """The level at which a warning of `warn` names the line that called isobatch, however many of our calls lie between."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "isobatch":
        level, frame = level + 1, frame.f_back
    return level + 1
