"""Columns that are no fields: they are carried along, and one that looks like a slip is said."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable

from isobatch.words import few, nearest, printable

_CLOSE = 0.82
"""How alike two names must be, from 0 to 1, for one to be taken for a slip of the other."""


_LIMITS = frozenset(f"{end}_{what}" for end in ("min", "max") for what in ("gpus", "nodes", "world_size"))
"""Names that sound as if they limited a job's clusters, and do not."""

_NO_LIMIT = "limits nothing: name the clusters of each job by pairs"


def note(names: Iterable[str], fields: Collection[str]) -> str | None:
    """What is said of columns that are no fields; None where all are.

    >>> note(["lr", "team", "weight_dcay"], ["lr", "weight_decay"])
    'not fields, carried along: team, weight_dcay (weight_decay?)'
    >>> note(["lr", "max_gpus"], ["lr", "gpus"])
    'not fields, carried along: max_gpus (limits nothing: name the clusters of each job by pairs)'
    """
    strays = [name for name in names if name not in fields]
    if not strays:
        return None
    hinted = []
    for name in strays:
        hint = _hint(name, fields)
        hinted.append(f"{printable(name, 80)} ({hint})" if hint else printable(name, 80))
    return f"not fields, carried along: {few(hinted, 20)}"


def _hint(name: str, fields: Collection[str]) -> str | None:
    """What else the name may have meant; None: most likely nothing."""
    if name.lower() in _LIMITS:
        return _NO_LIMIT
    close = nearest(name, fields, _CLOSE)
    return close and f"{close}?"


def warn(names: Iterable[str], fields: Collection[str]) -> None:
    """Warns of those that look like a slip, or as if they limited something."""
    slips = [name for name in names if name not in fields and _hint(name, fields)]
    if slips:
        warnings.warn(note(slips, fields) or "", stacklevel=_callers())


def _callers() -> int:
    """The level at which a warning of `warn` names the line that called isobatch, however many of our calls lie between."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "isobatch":
        level, frame = level + 1, frame.f_back
    return level + 1
