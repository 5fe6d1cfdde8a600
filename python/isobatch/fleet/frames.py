"""Data frames of pandas with columns of several kinds, which Arrow does not take."""

from __future__ import annotations

from typing import Any


def mixed_as_texts(source: Any) -> Any:
    """A data frame whose columns of mixed kinds are texts, so that each row is judged by its own cell; None where that is no way.

    Of NumPy and of files such a column is read cell by cell, too.
    """
    if type(source).__module__.partition(".")[0] != "pandas" or not hasattr(source, "isetitem"):
        return None
    frame = source.copy(deep=False)
    for place in range(frame.shape[1]):
        cells = frame.iloc[:, place].tolist() if str(frame.dtypes.iloc[place]) == "object" else []
        if len({type(cell) for cell in cells}) < 2:
            continue
        if any(isinstance(cell, (list, tuple, dict, set)) or hasattr(cell, "dtype") for cell in cells):
            return None
        frame.isetitem(place, [_text(cell) for cell in cells])
    return frame


def _text(cell: Any) -> str | None:
    if isinstance(cell, str):
        return cell
    try:
        known = cell is not None and bool(cell == cell)
    except TypeError:  # pandas.NA
        known = False
    return str(cell) if known else None
