"""Checks numbers, and columns of them with one value for all rows or one each, against their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError, must_be, unknown

if TYPE_CHECKING:  # loading NumPy takes as long as all else of `isobatch plan`, which has no columns
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

MAX_BATCH = 2**40
"""Samples of a batch."""


def within(error: float, tolerance: float) -> bool:
    """Tells whether an error, of either sign, is at most a tolerance; NaN is within none.

    Every comparison of this package with a tolerance is made here: written with `>`, it would pass NaN.

    >>> within(-0.5, 1), within(2.0, 1), within(float("nan"), 1), within(0.0, float("nan"))
    (True, False, False, False)
    """
    return bool(abs(error) <= tolerance)


def plain(value: Any) -> Any:
    """Returns a NumPy scalar as a Python number; anything else stays.

    >>> import numpy as np
    >>> plain(np.int64(8))
    8
    """
    if type(value) in (int, float, str, bool, tuple, type(None)) or not hasattr(value, "dtype"):
        return value
    kind = getattr(value.dtype, "kind", None)  # of NumPy; a tensor's has none
    if getattr(value, "ndim", 0) or (kind is not None and kind not in "biuf") or not hasattr(value, "item"):
        return value  # the core says what it should have been
    return value.item()


def plain_whole(value: Any) -> Any:
    """Returns a whole float, such as 3e8, as an int; anything else as `plain` does.

    >>> plain_whole(3e8), plain_whole(2.5)
    (300000000, 2.5)
    """
    number = plain(value)
    return int(number) if type(number) is float and number.is_integer() and abs(number) <= 2**53 else number


@cache
def whole_fields() -> frozenset[str]:
    """Lists the fields of recipes, clusters and settings with whole numbers."""
    from isobatch import _core

    return frozenset(name for name, _, legal in _core.fields() if legal.startswith("a whole number"))


def reals(values: ArrayLike, field: str, legal: str, is_legal: Callable[[Any], Any]) -> NDArray[np.float64]:
    """Checks reals: float64, at least one-dimensional; the first illegal one is named.

    >>> reals([0.5, -1], "overlap", "a number above 0", lambda x: x > 0)
    Traceback (most recent call last):
    isobatch.errors.InputError: row 2: overlap must be a number above 0, got -1.0
    """
    import numpy as np

    column = np.asarray(values)
    if column.dtype.kind not in "iuf" or column.ndim > 1:
        raise _no_numbers(values, column, field, legal)
    column = np.ascontiguousarray(np.atleast_1d(column), np.float64)
    _raise_first(column, ~(np.isfinite(column) & is_legal(column)), field, legal)
    return column


def wholes(values: ArrayLike, field: str, least: int, most: int) -> NDArray[np.uint64]:
    """Checks whole numbers: uint64, at least one-dimensional; the first outside the limits is named."""
    import numpy as np

    column = np.asarray(values)
    legal = f"a whole number from {least:,} to {most:,}"
    no_type = column.dtype.kind == "f" and not column.size
    if column.dtype.kind not in "iuf" or column.ndim > 1 or no_type:
        raise _no_numbers(values, column, field, legal)
    column = np.atleast_1d(column)
    is_whole = (column >= least) & (column <= most) & (np.floor(column) == column)
    _raise_first(column, ~is_whole, field, legal)
    return np.ascontiguousarray(column, np.uint64)


def real(value: Any, field: str, legal: str, is_legal: Callable[[Any], Any]) -> float:
    """Checks one number.

    >>> real([1, 2], "tokens", "a number above 0", lambda x: x > 0)
    Traceback (most recent call last):
    isobatch.errors.InputError: tokens must be a number above 0, got [1, 2]
    """
    import numpy as np

    column = reals(value, field, legal, is_legal) if np.ndim(value) == 0 else None
    if column is None:
        raise must_be(legal, value, field=field)
    return float(column[0])


def whole(value: Any, field: str, most: int = 2**53) -> int:
    """Returns one whole number from 1."""
    number = plain_whole(value)
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise must_be("a whole number from 1", value, field=field)
    return int(wholes(number, field, 1, most)[0])


def one_of(value: Any, field: str, known: Iterable[str]) -> str:
    """Returns a name, refused where it is none of the known ones."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        raise unknown(field, value, names, field=field)
    return value


def common_rows(columns: dict[str, NDArray[Any]]) -> int:
    """Counts the rows common to all columns."""
    rows = max(map(len, columns.values()))
    for field, column in columns.items():
        if len(column) not in (1, rows):
            raise InputError(f"{field} must have 1 or {rows:,} values, got {len(column):,}", field=field)
    return rows


def _no_numbers(values: Any, column: NDArray[Any], field: str, legal: str) -> InputError:
    if column.ndim == 0:
        return must_be(legal, values, field=field)
    return InputError(f"{field} must be {legal}, got {_kind(column)}", field=field)


def _kind(column: NDArray[Any]) -> str:
    """Names the values of an array."""
    holds = {
        "b": "booleans",
        "U": "texts",
        "S": "bytes",
        "O": "objects",
        "f": "reals",
        "c": "complex numbers",
    }
    shape = f" in {column.ndim} dimensions" if column.ndim > 1 else ""
    return f"{holds.get(column.dtype.kind, str(column.dtype))}{shape}"


def _raise_first(column: NDArray[Any], bad: NDArray[np.bool_], field: str, legal: str) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise must_be(legal, column[at].item(), field=field, row=at + 1 if len(column) > 1 else None)
