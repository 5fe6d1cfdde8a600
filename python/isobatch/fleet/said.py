"""Columns of a fleet's table that repeat what the jobs say, for `schedule_matrix`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.fleet.columns import MISSING, Codes, Data
from isobatch.fleet.side import Side

SAID = {
    "schedule": "schedule",
    "tuned_batch": "effective_batch",
    "dataset_size": "dataset_size",
    "seq_len": "seq_len",
}
"""These columns, and the recipe's field that each repeats. A table has them only where they are asked for by name."""

_DEFAULT_SCHEDULE = "cosine"


def said_of(jobs: Side, name: str, *, arrow: bool) -> Any:
    """One of these columns, a value for each job, as NumPy or Arrow has it; −1 or null where it is not known.

    A schedule is not known where the job has a ramp: its clock is no text.
    """
    known = dict(jobs.known)
    data = known.get(SAID[name])
    if name == "schedule":
        return _texts(data, known.get("ramp"), jobs.rows, arrow=arrow)
    whole = np.full(jobs.rows, -1) if data is None else _whole(data)
    if not arrow:
        return whole
    import pyarrow as pa

    return pa.array(whole, mask=whole == -1)


def _texts(data: Data | None, ramp: Data | None, rows: int, *, arrow: bool) -> Any:
    codes, texts = data if isinstance(data, tuple) else (np.zeros(rows, np.uint32), [None])
    # An illegal text is empty here, and its row infeasible.
    named = [_DEFAULT_SCHEDULE if text is None else text for text in texts] + [""]
    if isinstance(ramp, tuple):
        codes = np.where(_ramps(ramp), np.uint32(len(texts)), codes)
    if not arrow:
        return np.array(named)[codes]
    import pyarrow as pa

    return pa.array([text or None for text in named], pa.string()).take(pa.array(codes))


def _ramps(ramp: Codes) -> NDArray[np.bool_]:
    return np.array([text is not None for text in ramp[1]], dtype=bool)[ramp[0]]


def _whole(data: Data) -> NDArray[np.int64]:
    if isinstance(data, tuple):
        return np.array([_count(text) for text in data[1]], np.int64)[data[0]]
    if data.dtype.kind == "i":
        return np.where(data == MISSING, -1, data)
    return np.where((data > 0) & (data < 2**53), data, -1).astype(np.int64)


def _count(text: str | None) -> int:
    try:
        number = float(text or "nan")
    except ValueError:
        return -1
    return int(number) if 0 < number < 2**53 else -1
