"""One column of a table, of NumPy or Arrow, as the core takes it: whole numbers, reals, or numbered texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.schedules.text import check_spec
from isobatch.words import number_of

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = np.iinfo(np.int64).min
"""A whole number that is not known, as the core reads it."""

JOB_FIELDS, CLUSTER_FIELDS, SETTINGS_FIELDS = (
    tuple(name for name, record, _ in _core.fields() if record == kind)
    for kind in ("recipe", "cluster", "settings")
)

Codes = tuple[NDArray[np.uint32], list[str | None]]
Data = NDArray[np.int64] | NDArray[np.float64] | Codes


def fields_for_core(columns: list[tuple[str, Data]]) -> list[tuple[str, Data]]:
    """Leaves out columns without a value in any row: a default in every row costs as much as a value.

    Only Python reads the texts of schedules: an illegal one becomes the empty text, and the core refuses it.
    """
    known = []
    for name, data in columns:
        if name == "schedule" and isinstance(data, tuple):
            data = data[0], [text if text is None or _is_schedule(text) else "" for text in data[1]]
        if not isinstance(data, tuple) or data[1] != [None]:
            known.append((name, data))
    return known


def _is_schedule(text: str) -> bool:
    try:
        check_spec(text)
    except InputError:
        return False
    return True


def _not_text(name: str, file: str | None) -> InputError:
    return InputError(f"{name} has text that is not Unicode", file=file, field=name)


# NumPy


def as_array(name: str, column: Any, file: str | None) -> NDArray[Any]:
    """Reads a column of a mapping as an array of one dimension."""
    array: NDArray[Any]
    if isinstance(column, np.ndarray):
        array = column
    elif isinstance(column, str) or not hasattr(column, "__len__"):
        raise must_be("an array or a sequence, one value a row", column, field=name, file=file)
    else:
        try:
            array = np.asarray(column)
        except (ValueError, OverflowError):  # lists of unequal length, whole numbers of all sizes
            array = np.empty(len(column), dtype=object)
            array[:] = column
    if array.ndim == 2 and (name == "device_batches" or (name == "betas" and array.shape[1] == 2)):
        lists = np.empty(len(array), dtype=object)
        lists[:] = [tuple(row) for row in array.tolist()]
        return lists
    if array.ndim != 1:
        why = f"{name} must have one dimension, got an array of {array.ndim}"
        raise InputError(why, file=file, field=name)
    return array


def of_numpy(name: str, column: NDArray[Any], file: str | None) -> Data:
    """Reads a NumPy column as the core takes it; masked values, None and NaN are unknown."""
    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    values = np.asarray(column)
    kind = values.dtype.kind
    if kind == "b":
        return _flags(values, mask)
    if kind in "iu":
        return _integers(values, mask)
    if kind == "f":
        reals = np.ascontiguousarray(values, dtype=np.float64)
        return reals if mask is None else np.where(mask, np.nan, reals)
    if kind == "U" and mask is None and (codes := _few_texts(name, values, file)) is not None:
        return codes
    if kind in "UO":
        return _factorize(name, column.tolist(), file)  # masked values are None
    raise InputError(f"{name} holds {values.dtype}, expected numbers or texts", file=file, field=name)


def _flags(values: NDArray[np.bool_], mask: NDArray[np.bool_] | None) -> Codes:
    """Flags as texts: as numbers they would be counts of 0 and 1."""
    codes = np.ascontiguousarray(values, dtype=np.uint32)
    return codes if mask is None else np.where(mask, np.uint32(2), codes), ["false", "true", None]


def _integers(values: NDArray[Any], mask: NDArray[np.bool_] | None) -> Data:
    if mask is not None:
        values = np.where(mask, 0, values)
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        return _coded(np.ma.MaskedArray(values, np.ma.nomask if mask is None else mask).tolist())
    integers = np.ascontiguousarray(values, dtype=np.int64)
    if integers.size and integers.min() == MISSING:
        # A number that no field may have stays one, and is not taken for unknown.
        integers = np.maximum(integers, MISSING + 1)
    return integers if mask is None else np.where(mask, MISSING, integers)


_LOOKED_AT, _FEW = 1 << 8, 8


def _few_texts(name: str, values: NDArray[np.str_], file: str | None) -> Codes | None:
    """Reads a long column of few texts, comparing each with all rows at once; None where there may be more.

    This takes a fifth of the time of a Python object for each row, and no lock that other threads need.
    """
    if len(values) < 64 * _LOOKED_AT or len(set(values[:: len(values) // _LOOKED_AT].tolist())) > _FEW // 2:
        return None
    codes = np.zeros(len(values), np.uint32)
    remaining = np.ones(len(values), np.bool_)
    texts: list[str | None] = []
    while remaining[at := int(np.argmax(remaining))]:
        if len(texts) == _FEW:
            return None
        same = values == values[at]
        codes[same] = len(texts)
        remaining &= ~same
        texts.append(str(values[at]))
    try:
        return codes, [_text(text) for text in texts]
    except UnicodeEncodeError:
        raise _not_text(name, file) from None


def _factorize(name: str, cells: list[Any], file: str | None) -> Codes:
    kinds = set(map(type, cells))
    if kinds & {list, tuple, np.ndarray}:
        # As texts: (1, 2) and (True, 2.0) are equal, and not the same.
        cells = [_list_text(cell) if isinstance(cell, list | tuple | np.ndarray) else cell for cell in cells]
    try:
        # 1, True and 1.0 are equal, and not the same.
        return _coded(cells, typed=len(kinds - {type(None)}) > 1)
    except TypeError:
        row = next(row for row, cell in enumerate(cells, 1) if not _is_hashable(cell))
        raise must_be("a number or a text", cells[row - 1], field=name, file=file, row=row) from None
    except UnicodeEncodeError:
        raise _not_text(name, file) from None


def _list_text(cell: Any) -> Any:
    """Writes a list as the core reads it; one of other things than values stays as it is."""
    items = cell.tolist() if isinstance(cell, np.ndarray) else cell
    if not isinstance(items, (list, tuple)):
        return items
    values = tuple(item.item() if isinstance(item, np.generic) else item for item in items)
    return str(values) if _is_hashable(values) else items


def _is_hashable(cell: Any) -> bool:
    try:
        hash(cell)
    except TypeError:
        return False
    return True


def _coded(cells: list[Any], *, typed: bool = False) -> Codes:
    numbers: dict[Any, int] = {}
    keys = ((type(cell), cell) for cell in cells) if typed else cells
    codes = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.uint32, len(cells))
    return codes, [_text(key[1] if typed else key) for key in numbers]


def known_text(value: Any) -> str | None:
    """Returns a cell as text; None where it is not known."""
    if isinstance(value, str):
        return value
    try:
        return str(value) if value is not None and value == value else None
    except TypeError:  # pandas.NA
        return None


def _text(value: Any) -> str | None:
    """Returns a cell as text for the core; None where it is not known."""
    text = known_text(value)
    if text is None or not isinstance(value, str):
        return text
    text.encode()  # refuses half a character, which the core cannot be given
    return None if text in ("", "null", "NULL") else text


# Arrow


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Casts string views of polars, unknown to Arrow's kernels yet, for categories too."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if not (pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type)):
        return column
    chunks = [
        pa.DictionaryArray.from_arrays(
            chunk.indices, chunk.dictionary.cast(pa.string()), ordered=kind.ordered
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, pa.dictionary(kind.index_type, pa.string(), kind.ordered))


def of_arrow(name: str, column: pa.ChunkedArray, file: str | None) -> Data:
    """Reads an Arrow column as the core takes it."""
    with naming_column(name, file):
        return _of_arrow(name, column, file)


@contextmanager
def naming_column(name: str, file: str | None) -> Iterator[None]:
    """Names an Arrow column in errors of its cells: dates past Python's calendar, unknown time zones."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError:
        raise _not_text(name, file) from None
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"{name} has a cell that cannot be read: {error}", file=file, field=name) from None


def _of_arrow(name: str, column: pa.ChunkedArray, file: str | None) -> Data:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_string(kind.value_type) and column.num_chunks == 1:
            return _of_dictionary(column.chunk(0))
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        filled = column.fill_null(pa.scalar(0).cast(kind)) if column.null_count else column
        mask = column.is_null().to_numpy() if column.null_count else None
        values = np.asarray(filled.to_numpy())
        return _flags(values, mask) if pa.types.is_boolean(kind) else _integers(values, mask)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.string())  # exact, where a real would be rounded
        kind = column.type
    if pa.types.is_floating(kind):
        reals = column.cast(pa.float64(), safe=False)
        return np.asarray((reals.fill_null(float("nan")) if reals.null_count else reals).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
        return _of_dictionary(encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint32), [None]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        return _factorize(name, column.to_pylist(), file)
    raise InputError(f"{name} holds {kind}, expected numbers or texts", file=file, field=name)


def _of_dictionary(encoded: pa.DictionaryArray) -> Codes:
    import pyarrow as pa

    if len(encoded.dictionary) > len(encoded):
        # Most of its texts are not here.
        encoded = encoded.dictionary_decode().dictionary_encode()
    texts = [_text(text) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.cast(pa.uint32())
    if codes.null_count:
        codes = codes.fill_null(len(texts))
        texts.append(None)
    return codes.to_numpy(), texts


# Decimal commas

DECIMALS = (".", ",")
"""The signs before a fraction."""
_NUMBERS = frozenset(
    name
    for name, _, legal in _core.fields()
    if name == "policy" or legal.startswith(("a whole number", "a finite number", "a number", "a fraction"))
)
_BETWEEN_THOUSANDS = " '\u2019\xa0\u2009\u202f"


@cache
def _decimal_number(decimal: str) -> re.Pattern[str]:
    signs = re.escape(_BETWEEN_THOUSANDS + (DECIMALS[0] if decimal == DECIMALS[1] else DECIMALS[1]))
    whole = rf"[1-9]\d{{0,2}}(?P<sign>[{signs}])\d{{3}}(?:(?P=sign)\d{{3}})*|\d+"
    part = rf"(?:{re.escape(decimal)}(?P<part>\d+))?"
    return re.compile(rf"\s*(?P<whole>{whole}){part}(?P<rest>[^\d.,].*)?", re.DOTALL)


def with_decimal(name: str, data: Data, decimal: str | None) -> Data:
    """Reads the numbers of a column of texts with this sign before their fractions; None: a point."""
    if decimal is None or not isinstance(data, tuple) or name not in _NUMBERS:
        return data
    return data[0], [text and plain_number(text, decimal) for text in data[1]]


def plain_number(text: str, decimal: str) -> str:
    match = _decimal_number(decimal).fullmatch(text)
    if match is not None:
        part = (match["part"] or "").rstrip("0")
        whole = "".join(filter(str.isdigit, match["whole"]))
        return f"{whole}{part and f'.{part}'}{match['rest'] or ''}"
    # 0.1 has no thousands: nothing says what it is here.
    return f"{text} where the decimal sign is {decimal!r}" if {*text} & {*DECIMALS} else text


def fill_missing(data: Data, value: Any) -> Data:
    """Puts a value where the column has none."""
    # A policy: numbers in some rows, a word in the others.
    if isinstance(value, str) and not isinstance(data, tuple):
        data = _coded([_number(cell) for cell in data.tolist()])
    if isinstance(data, tuple):
        return data[0], [str(value) if text is None else text for text in data[1]]
    if data.dtype.kind == "i":
        return np.where(data == MISSING, value, data)
    return np.where(np.isnan(data), value, data)


def _number(cell: float) -> float | None:
    """Returns a cell of numbers as people write it: pandas makes whole numbers beside NaN reals."""
    if cell == MISSING or cell != cell:
        return None
    return int(cell) if cell == cell // 1 else cell


# Cells that only Python reads


def cells_of(column: Any) -> list[Any]:
    """Reads a column of NumPy or Arrow as Python's values; None where one is not known."""
    if isinstance(column, list):
        return column
    cells: list[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()
    if getattr(column, "dtype", np.dtype(object)).kind in "biu":
        return cells
    return [
        None if isinstance(cell, (str, float)) and (cell == "" or cell != cell) else cell for cell in cells
    ]


def number_in(cell: Any, is_legal: Callable[[float], bool]) -> int | float | None:
    """Reads the number of a cell or of its text; None if it is no number, or not legal."""
    value = number_of(cell) if isinstance(cell, str) else cell
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    with suppress(OverflowError):  # an int that no double holds
        return value if math.isfinite(value) and is_legal(value) else None
    return None


def floats_of(column: Any) -> NDArray[np.float64]:
    """Reads the numbers of a column or of its cells, texts too; NaN for a cell without a number."""
    if type(column) is np.ndarray and column.dtype.kind in "iuf":
        return column.astype(np.float64)
    cells = cells_of(column)
    if {*map(type, cells)} <= {int, float, type(None)}:
        with suppress(OverflowError):  # an int that no double holds
            return np.array(cells, np.float64)
    return np.array([number_in(cell, lambda _: True) for cell in cells], np.float64)
