"""All rows of a table for the page: packed small, a column at a time, and the first of them in words."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import words
from isobatch.fleet.results import RESULTS, STATUS
from isobatch.reason import Reason
from isobatch.report.page import Rows
from isobatch.report.plans import Plans
from isobatch.words import printable

_BUDGET = 3_500_000
"""Bytes that the packed columns may take; the page has 5 MB."""
_FIRST = 50
"""Rows that are in the page as text: the script's window has as many."""
_TRIED = 20_000
"""Rows of which the size of a page is worked out."""
_EXACT = ("lr", "lr_scale", "beta1", "beta2", "eps", "weight_decay", "momentum", "ema_decay")
_USUAL = (
    "job", "cluster", "gpus", "status", "world_size", "micro_batch", "accumulation", "effective_batch", "batch_change",
    "lr", "total_steps", "warmup_steps", "hours", "gpu_hours", "cost", "memory_gib", "reasons", "nearest_world_size",
    "nearest_batch",
)  # fmt: skip
"""Columns in the order in which people look at them; others come behind."""


def rows_of(plans: Plans, caption: str) -> Rows:
    """The table of all rows, as many columns of it as fit; where those that people look at do not, the first rows."""
    every = plans.rows
    plans, columns = _fitting(plans), _ordered(plans)
    kept: list[tuple[str, str, list[Any], NDArray[np.int64]]] = []
    packed, size, left_out = [], 0, []
    for name in columns:
        kind, values, at, text = _packed(plans, name)
        if size + len(text) > _BUDGET and kept:
            left_out.append(name)
            continue
        size += len(text)
        kept.append((name, kind, values, at))
        packed.append({"kind": kind, "packed": text})
    first = [
        [written(values[at[row]], kind) for _, kind, values, at in kept]
        for row in range(min(_FIRST, plans.rows))
    ]
    notes = []
    if plans.rows < every:
        caption = f"The first {plans.rows:,} of {caption}"
        notes.append("For the size of the page without the rows after these: the table's file has them.")
    if left_out:
        notes.append(f"For the size of the page without the columns {words.few(left_out, 20)}.")
    if plans.rows > _FIRST:
        notes.append(f"Without JavaScript, and on paper: the first {_FIRST} of {plans.rows:,} rows.")
    return Rows(
        caption,
        [name for name, *_ in kept],
        [kind for _, kind, *_ in kept],
        _inert({"columns": packed}),
        plans.rows,
        first,
        notes,
    )


def _fitting(plans: Plans) -> Plans:
    """As many of the first rows as can be shown with the columns that people look at."""
    usual = [name for name in _ordered(plans) if name in _USUAL]
    if plans.rows > _TRIED:
        tried = plans.first(_TRIED)
        size = sum(len(_packed(tried, name)[-1]) for name in usual) / _TRIED
        # Where the first rows pack better than those that follow, the columns at the end are left out.
        fits = max(_TRIED, int(0.9 * _BUDGET / size))
        return plans if fits >= plans.rows else plans.first(fits)
    return plans


def _packed(plans: Plans, name: str) -> tuple[str, list[Any], NDArray[np.int64], str]:
    """A column's kind, its values, which each row has, and both as the page has them."""
    kind, values, at = _column(plans, name)
    values = [printable(value, 300) if isinstance(value, str) else value for value in values]
    return kind, values, at, _pack({"values": values, "at": at.tolist()})


def written(value: Any, kind: str) -> str:
    """A value as the table shows it.

    >>> written(1281167.0, "count"), written(2e-5, "real"), written(None, "text")
    ('1,281,167', '2e-5', '')
    """
    if value is None:
        return ""
    if kind == "count":
        return words.count(value)
    return words.real(value) if kind == "real" else words.figure(value) if kind == "figure" else str(value)


def _ordered(plans: Plans) -> list[str]:
    """The columns of which something is known."""
    known = {"status", "reasons", *plans.texts}
    known |= {name for name, values in plans.numbers.items() if not np.isnan(values).all()}
    usual = [name for name in _USUAL if name in known]
    return [*usual, *(name for name in (*plans.texts, *plans.numbers) if name in known and name not in usual)]


def _column(plans: Plans, name: str) -> tuple[str, list[Any], NDArray[np.int64]]:
    """A column's kind, its distinct values, and which each row has."""
    if name == "status":
        return "status", STATUS.tolist(), plans.status
    if name == "reasons":
        sets, at = np.unique(plans.reasons, return_inverse=True)
        return "text", ["; ".join(Reason.of(int(bits))) for bits in sets.tolist()], at.astype(np.int64)
    if name in plans.texts:
        texts, at = plans.texts[name]
        return "text", list(texts), at
    numbers = plans.numbers[name]
    whole = "int" in RESULTS.get(name, "") or name == "gpus" or _is_whole(numbers)
    kind = "count" if whole else "real" if name in _EXACT else "figure"
    # The digits that are shown, and no more: many rows' values are then one, and nothing is rounded twice.
    found, at = np.unique(numbers if kind != "figure" else _rounded(numbers), return_inverse=True)
    known: list[Any] = [
        None if value != value else int(value) if kind == "count" else value for value in found.tolist()
    ]
    return kind, known, at.astype(np.int64)


def _is_whole(numbers: NDArray[np.float64]) -> bool:
    known = numbers[~np.isnan(numbers)]
    return bool((known == np.rint(known)).all()) and not (known.size and np.abs(known).max() > 2**53)


def _rounded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers to the three significant digits that `words.figure` writes.

    >>> _rounded(np.array([0.123537, 0.1235, 98_760.0, 5e-324, 0.0])).tolist()
    [0.124, 0.123, 98800.0, 5e-324, 0.0]
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size = np.where(numbers == 0, 0, np.floor(np.log10(np.abs(numbers))))
        # Of the least there are, no float holds the scale.
        known = np.isfinite(size) & (size > -300)
        size = np.where(known, size, 0)
        # Powers up to 10^22 are exact, their inverses are not.
        up, down = 10.0 ** np.maximum(2 - size, 0), 10.0 ** np.maximum(size - 2, 0)
        scaled = numbers * up / down
        found: NDArray[np.float64] = np.where(known, np.rint(scaled) / up * down, numbers)
        # The product of a number just beside the middle may be the middle.
        doubtful = known & (np.abs(scaled - np.floor(scaled) - 0.5) < 1e-6)
    found[doubtful] = [float(f"{number:.2e}") for number in numbers[doubtful].tolist()]
    return found


def _pack(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 6)).decode()


def _inert(value: Any) -> Any:
    """JSON for the inside of a script element: nothing in it ends the element."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
