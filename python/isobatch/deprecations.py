"""Public names on their way out: each warns once, says what to write instead, and when it goes.

A name of the package or an option needs only its row here; a field or a column asks `successor_of` where it
is read. A test fails from the version on in which a row goes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple


class Successor(NamedTuple):
    """The name to write instead of a deprecated one, and the version without the old name."""

    name: str
    removed_in: str


DEPRECATED: dict[str, Successor] = {}
"""By the old name as people write it: "isobatch.plan_all", "--max-gpus", "micro_batch_size"."""

_REPORTED: set[str] = set()


def successor_of(name: str, report: Callable[[str], None] | None = None) -> str | None:
    """Returns the name to use in the place of a deprecated one, and warns the first time; None of others.

    The warning goes to `report`; without one it is a FutureWarning where the caller was called.
    """
    successor = DEPRECATED.get(name)
    if successor is None:
        return None
    if name not in _REPORTED:
        _REPORTED.add(name)
        text = f"{name} is deprecated and goes in isobatch {successor.removed_in}: use {successor.name}"
        if report is None:
            warnings.warn(text, FutureWarning, stacklevel=3)
        else:
            report(text)
    return successor.name
