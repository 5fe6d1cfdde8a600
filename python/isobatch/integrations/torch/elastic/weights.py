"""What a micro-batch's mean loss is multiplied by, in the unit that the mean is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.agreement import is_count
from isobatch.words import shown

Tokens: TypeAlias = Callable[[Any], Any]
"""What a batch's mean loss is over: how many tokens, labels, boxes. A number, or a tensor of one."""


def count(tokens: Tokens, batch: Any) -> float:
    """What `tokens` counts in a batch; NaN where that is no count, so that the sum over the ranks is none either."""
    found = tokens(batch)
    value = found.item() if hasattr(found, "item") else found
    if isinstance(value, (int, float)) and is_count(value):
        return float(value)
    return float("nan")


def check_window(total: float, own: float, step: int) -> None:
    """Raises on all ranks where the window of a step has nothing to take a mean over.

    Raises:
        InputError: `tokens` gave no count on some rank, or found nothing on all of them.
    """
    if not is_count(total):
        rank = "this rank" if not is_count(own) else "another rank"
        raise InputError(
            f"tokens must give a number from 0, as an int or a tensor of one; {rank} got something else in step {step}",
            field="tokens",
        )
    if not total:
        raise InputError(
            f"step {step} has no token on any rank: {shown(0)} cannot be averaged over; filter samples without labels",
            field="tokens",
        )
