"""The columns of a fleet's result: those of the core and, on request, some of the jobs' own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.fleet.columns import MISSING, Data
from isobatch.reason import Reason

if TYPE_CHECKING:
    from isobatch.fleet.table import InputTable

RESULTS = {name: kind for name, kind, *_ in _core.results()}
"""Result columns of the core, with their NumPy types."""

ON_REQUEST = ("warmup_lr", "min_lr")
"""Of these, those that a fleet's table has only where they are asked for by name."""

USUAL = tuple(name for name in RESULTS if name not in ON_REQUEST)
"""The result columns that a fleet's table has where none are named."""

STATUS = np.array(["ok", "caution", "infeasible"])
"""The texts of the status codes."""

INFEASIBLE = np.uint64(sum(1 << reason.bit for reason in Reason if reason.severity == "infeasible"))
"""The bits of all reasons for no plan."""


def result_in_arrow(name: str, values: NDArray[Any]) -> Any:
    """Returns a result column as Arrow, its unknown values null, without a copy of the values."""
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


# Input columns repeated in the result

ECHOED = {
    "schedule": "schedule",
    "tuned_batch": "effective_batch",
    "dataset_size": "dataset_size",
    "seq_len": "seq_len",
}
"""These columns, and the recipe's field that each repeats. A result has them only on request."""

_DEFAULT_SCHEDULE = "cosine"


def echoed_column(jobs: InputTable, name: str, *, arrow: bool) -> Any:
    """Returns one of these columns, a value for each job; −1 or null if not known, as with a ramp."""
    fields = dict(jobs.fields)
    data = fields.get(ECHOED[name])
    if name == "schedule":
        return _schedules(data, fields.get("ramp"), jobs.rows, arrow=arrow)
    whole = np.full(jobs.rows, -1) if data is None else _whole(ECHOED[name], data)
    return result_in_arrow(name, whole) if arrow else whole


def _schedules(data: Data | None, ramp: Data | None, rows: int, *, arrow: bool) -> Any:
    codes, texts = data if isinstance(data, tuple) else (np.zeros(rows, np.uint32), [None])
    # An illegal text is empty here, and its row infeasible.
    named = [_DEFAULT_SCHEDULE if text is None else text for text in texts] + [""]
    if isinstance(ramp, tuple):
        has_ramp = np.array([text is not None for text in ramp[1]], dtype=bool)[ramp[0]]
        codes = np.where(has_ramp, np.uint32(len(texts)), codes)
    if not arrow:
        return np.array(named)[codes]
    import pyarrow as pa

    return pa.array([text or None for text in named], pa.string()).take(pa.array(codes))


def _whole(field: str, data: Data) -> NDArray[np.int64]:
    if isinstance(data, tuple):
        return np.array([_count(field, text) for text in data[1]], np.int64)[data[0]]
    if data.dtype.kind == "i":
        return np.where(data == MISSING, -1, data)
    return np.where((data > 0) & (data < 2**53), data, -1).astype(np.int64)


def _count(field: str, text: str | None) -> int:
    """Reads a text as the plan does."""
    number = None if text is None else _core.number(field, text)
    return number if type(number) is int and 0 < number < 2**53 else -1


# How a file of plans was made: written beside its columns, read where they are shown

MAX_NAMED_CLUSTERS = 200
"""The most clusters with their GPU types in a file: a folder has them in each of up to 100,000 files."""


class Provenance(NamedTuple):
    """The origin of plans; `select` is "all" without a choice, None if the file does not say.

    `top` is the rows of each job, `gpu_types` those of the clusters, `profiles` the models of the profiles.
    """

    settings: dict[str, Any]
    select: str | None = None
    top: int = 1
    gpu_types: Mapping[str, str] = {}
    profiles: tuple[str, ...] = ()


def to_metadata(provenance: Provenance) -> dict[str, str]:
    """Writes it as a file's metadata."""
    metadata = {
        "isobatch.version": _core.__version__,
        "isobatch.settings": _json(provenance.settings),
        "isobatch.select": _json({"by": provenance.select, "top": provenance.top}),
    }
    if provenance.gpu_types:
        metadata["isobatch.gpu_types"] = _json(dict(provenance.gpu_types))
    if provenance.profiles:
        metadata["isobatch.profiles"] = _json({"models": provenance.profiles})
    return metadata


def of_metadata(metadata: Mapping[bytes, bytes] | None) -> Provenance:
    """Reads it from a file's metadata; where no fleet wrote them, nothing is known."""
    known = metadata or {}
    chosen = _read(known, b"isobatch.select")
    select, top = chosen.get("by"), chosen.get("top")
    if not isinstance(select, str) or type(top) is not int or top < 1:
        select, top = None, 1
    types = _read(known, b"isobatch.gpu_types")
    named = {name: gpu for name, gpu in types.items() if isinstance(gpu, str)}
    models = _read(known, b"isobatch.profiles").get("models")
    profiles = tuple(map(str, models)) if isinstance(models, list) else ()
    return Provenance(_read(known, b"isobatch.settings"), select, top, named, profiles)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(metadata: Mapping[bytes, bytes], name: bytes) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(name, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
