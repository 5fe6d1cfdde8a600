"""Ids of rows: missing ones and duplicates, in one table or in a fleet in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError, must_be, raise_all
from isobatch.fleet.columns import cells_of, naming_column
from isobatch.words import shown

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = NDArray[np.int64]

_MAX_NAMED = 100
"""Duplicates that one error has."""
MAX_HASHED_IDS = 1 << 27
"""Ids of a fleet in blocks that are compared: a GiB of hashes."""


def missing_ids(ids: Any) -> NDArray[np.bool_] | None:
    """Marks null, NaN and empty ids; None if there are none."""
    if ids is None:
        return None
    if hasattr(ids, "null_count"):
        return _missing_in_arrow(ids)
    kind = "O" if isinstance(ids, np.ma.MaskedArray) else ids.dtype.kind
    if kind in "biu":
        return None
    marks = ids == "" if kind == "U" else np.array([cell is None for cell in cells_of(ids)], np.bool_)
    return marks if marks.any() else None


def _missing_in_arrow(ids: pa.ChunkedArray) -> NDArray[np.bool_] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = ids.type
    if pa.types.is_dictionary(kind):
        ids, kind = ids.cast(kind.value_type), kind.value_type
    marks = pc.is_null(ids, nan_is_null=True)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        marks = pc.or_(marks, pc.fill_null(pc.equal(ids, ""), fill_value=True))
    return marks.to_numpy() if pc.any(marks).as_py() else None


def refuse_unreadable(kind: str, ids: pa.ChunkedArray | None, file: str | None) -> None:
    """Refuses Arrow ids without a Python value; only temporal and nested types may have them."""
    import pyarrow as pa

    if ids is not None and (pa.types.is_temporal(ids.type) or pa.types.is_nested(ids.type)):
        with naming_column(kind, file):
            ids.to_pylist()


def refuse_duplicates(
    kind: str, ids: Any, missing: NDArray[np.bool_] | None, file: str | None = None, row_offset: int = 0
) -> None:
    """Refuses a table with one id in two rows."""
    if ids is None or _are_unique(present_ids(ids, missing)):
        return
    first: dict[Any, int] = {}
    faults: list[InputError] = []
    for row, name in enumerate(ids.to_pylist() if hasattr(ids, "to_pylist") else ids.tolist()):
        if missing is not None and missing[row]:
            continue
        number = row_offset + row + 1
        try:
            before = first.setdefault(name, number)
        except TypeError:
            raise must_be("a text or a number", name, field=kind, file=file, row=number) from None
        if before != number:
            faults.append(duplicate_id(kind, name, file, number, f"row {before:,}"))
        if len(faults) == _MAX_NAMED:
            break
    raise_all(faults)


def present_ids(ids: Any, missing: NDArray[np.bool_] | None) -> Any:
    """Returns the ids of all rows with one."""
    if missing is None:
        return ids
    if isinstance(ids, np.ndarray):
        return ids[~missing]
    import pyarrow as pa

    return ids.filter(pa.array(~missing))


def _are_unique(ids: Any) -> bool:
    """Whether the ids are certainly all different; a slower look names the duplicates."""
    try:
        if isinstance(ids, np.ndarray):
            return len(np.unique(ids) if ids.dtype.kind in "iu" else set(ids.tolist())) == len(ids)
        return len(ids.unique()) == len(ids)
    except (TypeError, NotImplementedError):  # of NumPy and of Arrow
        return False


def duplicate_id(kind: str, name: Any, file: str | None, row: int, first_place: str) -> InputError:
    """Returns the error of an id in two rows; `first_place` names the earlier one."""
    return InputError(
        f"duplicate {kind} id {shown(name)} (also in {first_place})", file=file, row=row, field=kind
    )


def hashes_of(ids: pa.ChunkedArray) -> Hashes:
    """Hashes ids; of 10^7 different ids two share a hash once in 10^5 times."""
    if str(ids.type).removeprefix("u").startswith("int"):
        return np.asarray(ids.to_numpy()).astype(np.int64)
    return np.fromiter(map(hash, ids.to_pylist()), np.int64, len(ids))


def duplicates(blocks: Sequence[Hashes]) -> Hashes:
    """Returns the hashes in two or more blocks, each once; within a block all are different."""
    every = np.sort(np.concatenate([np.empty(0, np.int64), *blocks]))
    return np.unique(every[1:][every[1:] == every[:-1]])
