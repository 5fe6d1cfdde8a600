"""The columns of a fleet's result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.reason import Reason

RESULTS = {name: kind for name, kind, *_ in _core.results()}
"""Result columns of the core, with their NumPy types."""

ON_REQUEST = ("warmup_lr", "min_lr")
"""Of these, those that a fleet's table has only where they are asked for by name."""

USUAL = tuple(name for name in RESULTS if name not in ON_REQUEST)
"""The result columns that a fleet's table has where none are named."""

STATUS = np.array(["ok", "caution", "infeasible"])
"""The texts of the status codes."""


def result_in_arrow(name: str, values: NDArray[Any]) -> Any:
    """A result column as Arrow, its unknown values null, without a copy of the values."""
    import pyarrow as pa

    if name == "reasons":
        encoded = pa.array(values).dictionary_encode()
        lists = [[reason.value for reason in Reason.of(bits)] for bits in encoded.dictionary.to_pylist()]
        return pa.array(lists, pa.list_(pa.string())).take(encoded.indices)
    known = ~np.isnan(values) if values.dtype.kind == "f" else values != -1
    kind = pa.from_numpy_dtype(values.dtype)
    if known.all():
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    bitmap = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])
