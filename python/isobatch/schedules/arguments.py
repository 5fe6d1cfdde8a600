"""The checks of schedules' arguments: each returns a number, or raises an InputError naming the field."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from numbers import Real

from isobatch.errors import InputError, must_be
from isobatch.schedules.form import STEP_LIMIT


def number(field: str, value: object) -> float:
    """Reads `value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise must_be("a finite number", value, field=field)
    return float(value)


def rate(field: str, value: object) -> float:
    """Reads `value` as a learning rate or share: a finite number of at least 0."""
    result = number(field, value)
    if result < 0:
        raise must_be("at least 0", value, field=field)
    return result


def factor(field: str, value: object) -> float:
    """Reads `value` as a finite number above 0."""
    result = number(field, value)
    if result <= 0:
        raise must_be("above 0", value, field=field)
    return result


def length(field: str, value: object) -> float:
    """Reads `value` as a number of steps above 0."""
    result = number(field, value)
    if not 0 < result < STEP_LIMIT:
        raise must_be("a number of steps above 0 and below 2^53", value, field=field)
    return result


def span(field: str, value: object) -> float:
    """Reads `value` as a number of steps, 0 allowed."""
    result = number(field, value)
    if not 0 <= result < STEP_LIMIT:
        raise must_be("a number of steps from 0 to below 2^53", value, field=field)
    return result


def rising(field: str, values: Iterable[object], *, repeats: bool = False) -> list[float]:
    """Reads rising step boundaries; `repeats` lets one be listed more than once."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)) or not getattr(values, "ndim", 1):
        raise must_be("a list of steps", values, field=field)
    result = [span(field, value) for value in values]
    for before, after in pairwise(result):
        if after < before or (after == before and not repeats):
            raise InputError(f"{field} must rise, got {after:g} after {before:g}", field=field)
    return result


def multiplied(base: float, gamma: float, count: int) -> float:
    """Computes base·gamma^count.

    Raises:
        InputError: it overflows.
    """
    try:
        return base * gamma**count
    except OverflowError:
        raise must_be(f"a factor whose power of {count:,} is finite", gamma, field="gamma") from None


def choice(field: str, value: str, known: Iterable[str]) -> str:
    """Reads `value` as one of the names."""
    names = [*known]
    if value not in names:
        raise must_be(" or ".join(filter(None, (", ".join(names[:-1]), names[-1]))), value, field=field)
    return value
