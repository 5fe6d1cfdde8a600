"""Which jobs meet which clusters, where not all do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError, missing, must_be
from isobatch.fleet.rows import Pairs
from isobatch.fleet.side import Side
from isobatch.words import few, nearest, shown


def pairs_of(pairs: Any, jobs: Side, clusters: Side) -> Pairs:
    """The rows that meet, of a table with the ids of a job and a cluster in each row.

    Raises:
        InputError: it is no such table, or an id is not there; the message names the row.
    """
    file = None
    if isinstance(pairs, (str, os.PathLike)):
        from isobatch.files.read import read_table

        file, pairs = os.fspath(pairs), read_table(pairs)
    if hasattr(pairs, "__arrow_c_stream__"):
        import pyarrow as pa

        named = pa.table(pairs)
        pairs = {name: named[name].to_pylist() for name in named.column_names}
    if not isinstance(pairs, Mapping):
        raise must_be("a table with the columns job and cluster", pairs, field="pairs")
    rows = [_rows_of(pairs, side, file) for side in (jobs, clusters)]
    if len(rows[0]) != len(rows[1]):
        raise InputError(
            f"pairs has {len(rows[0]):,} jobs for {len(rows[1]):,} clusters", file=file, field="pairs"
        )
    return rows[0], rows[1]


def _rows_of(pairs: Mapping[str, Any], side: Side, file: str | None) -> NDArray[np.uint32]:
    if side.kind not in pairs:
        raise missing(side.kind, "pairs needs the columns job and cluster", file=file)
    wanted = pairs[side.kind]
    wanted = wanted.tolist() if isinstance(wanted, np.ndarray) else wanted
    if not isinstance(wanted, Sequence) or isinstance(wanted, str):
        raise must_be("a sequence of ids", wanted, field=side.kind, file=file)
    ids = side.numbered.to_pylist() if side.arrow else side.numbered.tolist()
    number = {name: row for row, name in enumerate(ids)}
    try:
        return np.fromiter((number[name] for name in wanted), np.uint32, len(wanted))
    except (KeyError, TypeError):
        # What cannot be a key is no id either.
        row = next(row for row, name in enumerate(wanted, 1) if name not in ids)
        raise InputError(
            f"there is no {side.kind} {shown(wanted[row - 1])}: {_ids_of(side, ids, wanted[row - 1])}",
            file=file,
            row=row,
            field=side.kind,
        ) from None


def _ids_of(side: Side, ids: Sequence[Any], wanted: Any) -> str:
    """What could have been meant."""
    close = (
        nearest(wanted, [name for name in ids if isinstance(name, str)]) if isinstance(wanted, str) else None
    )
    if close is not None:
        return f"did you mean {close!r}?"
    if side.ids is None:
        return f"without a column {side.kind} they are numbered from {ids[0] if ids else 0}"
    return f"there are {few((shown(name) for name in ids), 8) or 'none'}"
