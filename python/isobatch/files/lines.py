"""JSON lines as a table. pyarrow's own reader ends the process where a line is `null` or nested some thousands deep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError
from isobatch.words import printable

if TYPE_CHECKING:
    import pyarrow as pa

_DEEPEST = 32
"""Lists and objects in one another in a cell."""


def read_lines(stream: Any, path: str) -> pa.Table:
    """The table in JSON lines: an object a line, its columns in the order in which they first come. Cells that Arrow has no common type
    for are texts.

    Raises:
        InputError: a line is no object; the message names the row.
    """
    import pyarrow as pa

    decoder = msgspec.json.Decoder(dict[str, Any])
    columns: dict[str, list[Any]] = {}
    rows = 0
    for number, line in enumerate(stream.read().removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
            for name, value in record.items():
                cells = columns.setdefault(name, [])
                cells += [None] * (rows - len(cells))
                cells.append(_checked(value))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            what = "nested too deep" if isinstance(error, RecursionError) else printable(str(error))
            raise InputError(f"is no JSON object: {what}", file=path, row=number) from None
        rows += 1
    if not columns:
        raise InputError("the file is empty", file=path)
    for cells in columns.values():
        cells += [None] * (rows - len(cells))
    return pa.table({name: _array(cells) for name, cells in columns.items()})


def _checked(value: Any, depth: int = 0) -> Any:
    if isinstance(value, (list, dict)):
        if depth == _DEEPEST:
            raise RecursionError
        for inner in value.values() if isinstance(value, dict) else value:
            _checked(inner, depth + 1)
    return value


def _array(cells: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError, TypeError):
        texts = (
            cell if cell is None or isinstance(cell, str) else msgspec.json.encode(cell).decode()
            for cell in cells
        )
        return pa.array(texts, pa.string())
