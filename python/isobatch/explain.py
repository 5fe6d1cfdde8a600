"""A plan in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isobatch import _core

if TYPE_CHECKING:
    from isobatch._plan import Plan


def explain(plan: Plan) -> str:
    """What was held, what moved, by which formula, from which paper, and what to be wary of."""
    return ""
