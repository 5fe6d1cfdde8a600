"""Checked columns: one value for all rows or one each."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isobatch.errors import InputError


def reals(values: ArrayLike, field: str, legal: str, is_legal: Callable[[Any], Any]) -> NDArray[np.float64]:
    """The values as float64, at least one-dimensional; the first illegal one is named.

    >>> reals([0.5, -1], "overlap", "a number above 0", lambda x: x > 0)
    Traceback (most recent call last):
    isobatch.errors.InputError: row 2, field 'overlap': is -1.0, must be a number above 0
    """
    column = np.asarray(values)
    if column.dtype.kind not in "iuf" or column.ndim > 1:
        raise InputError(f"is {column.dtype} of shape {column.shape}, must be {legal}", field=field)
    column = np.ascontiguousarray(np.atleast_1d(column), np.float64)
    _raise_first(column, ~(np.isfinite(column) & is_legal(column)), field, legal)
    return column


def wholes(values: ArrayLike, field: str, least: int, most: int) -> NDArray[np.uint64]:
    """The values as uint64, at least one-dimensional; the first outside the limits is named."""
    column = np.asarray(values)
    legal = f"a whole number from {least} to {most}"
    if column.dtype.kind not in "iu" or column.ndim > 1:
        raise InputError(f"is {column.dtype} of shape {column.shape}, must be {legal}", field=field)
    column = np.atleast_1d(column)
    _raise_first(column, (column < least) | (column > most), field, legal)
    return np.ascontiguousarray(column, np.uint64)


def common_rows(columns: dict[str, NDArray[Any]]) -> int:
    """The number of rows that the columns agree on."""
    rows = max(map(len, columns.values()))
    for field, column in columns.items():
        if len(column) not in (1, rows):
            raise InputError(f"has {len(column)} values, must have one or {rows}", field=field)
    return rows


def _raise_first(column: NDArray[Any], bad: NDArray[np.bool_], field: str, legal: str) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise InputError(
            f"is {column[at]}, must be {legal}", row=at + 1 if len(column) > 1 else None, field=field
        )
