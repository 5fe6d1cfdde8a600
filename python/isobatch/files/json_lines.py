"""JSON lines as a table, in flat memory. pyarrow's own reader ends the process where a line is `null` or
nested some thousands deep."""

import json
from collections.abc import Callable, Iterator
from math import inf, isinf
from typing import Any

import msgspec
import pyarrow as pa

from isobatch.errors import InputError
from isobatch.files.limits import MAX_DEPTH_LEVELS, refuse_columns, refuse_duplicate_keys
from isobatch.words import printable

_BLOCK_BYTES = 1 << 22
"""Bytes that are parsed at a time."""
MAX_LINE_BYTES = 1 << 26
"""Bytes of a line."""

MAX_BLOCK_CELLS = 1 << 25

_Columns = dict[str, list[Any]]
_Decode = Callable[[bytes], dict[str, Any]]


def lines_schema(stream: Any, path: str) -> pa.Schema:
    """Finds the schema of the table in JSON lines: an object a line, columns ordered by their first line.

    Cells without a common type in Arrow become texts. All lines are read: the last may have a new column.
    """
    kinds: dict[str, _Kind] = {}
    most_rows = 0
    for columns, rows in _blocks(stream, path, _decode_unique):
        most_rows = max(most_rows, rows)
        for name, cells in columns.items():
            kinds.setdefault(name, _Kind()).add(cells)
        refuse_columns(kinds, path)
        _refuse_sparse(len(kinds), most_rows, path)
    if not kinds:
        raise InputError("the file is empty", file=path)
    return pa.schema([(name, kind.type) for name, kind in kinds.items()])


def lines_batches(stream: Any, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Reads the table in JSON lines by the schema of `lines_schema`, block by block."""
    for columns, rows in _blocks(stream, path, _decode):
        if columns.keys() - set(schema.names):
            raise InputError("has changed while it was read", file=path)
        cells = (columns.get(name) or [None] * rows for name in schema.names)
        arrays = [_array(some, kind) for some, kind in zip(cells, schema.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _blocks(stream: Any, path: str, decode: _Decode) -> Iterator[tuple[_Columns, int]]:
    """Reads the cells of some lines by their columns, missing ones as None, and the number of objects."""
    before = 0
    for lines in _lines(stream, path):
        columns: _Columns = {}
        rows = 0
        for number, line in enumerate(lines, before + 1):
            if not line.strip():
                continue
            try:
                for name, value in _object(decode, line).items():
                    cells = columns.get(name)
                    if cells is None:
                        cells = columns[name] = []
                        _refuse_sparse(len(columns), rows, path)
                    if len(cells) < rows:
                        cells += [None] * (rows - len(cells))
                    cells.append(value)
                    if isinstance(value, (list, dict)):
                        _refuse_deep(value)
            except InputError as error:
                raise error.at(file=path, row=number) from None
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise InputError(f"is no JSON object: {_why(line, error)}", file=path, row=number) from None
            rows += 1
        before += len(lines)
        _refuse_sparse(len(columns), rows, path)
        for cells in columns.values():
            cells += [None] * (rows - len(cells))
        if rows:
            yield columns, rows


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _decode_unique(line: bytes) -> dict[str, Any]:
    """Decodes a JSON object, and refuses a key twice in one."""
    values = _decode(line)
    if line.count(b":") != len(values):
        refuse_duplicate_keys(line, values)
    return values


def _object(decode: _Decode, line: bytes) -> dict[str, Any]:
    """Reads the object of a line.

    A line outside of JSON may have numbers as Python and pandas write them: NaN is unknown, as in NumPy, and
    an infinite number is a wrong value of its row.
    """
    try:
        return decode(line)
    except msgspec.MsgspecError:
        try:
            values: dict[str, Any] = json.loads(line.decode(), parse_constant=_STRANGE.get)
            msgspec.json.encode(values)  # refuses half a character
        except ValueError:
            values = {}
        if not values or not isinstance(values, dict):
            raise
        refuse_duplicate_keys(line, values)
        return values


_STRANGE = {"NaN": None, "Infinity": inf, "-Infinity": -inf}


def _why(line: bytes, error: Exception) -> str:
    """Describes a line other than an object."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if line.lstrip().startswith(b"["):
        return "it is a list; give each job a line of its own, such as by jq -c '.[]' FILE"
    return (
        f"{printable(str(error))}. Each line is one whole object: "
        f"{printable(line.decode(errors='replace').strip(), 80)}"
    )


def _lines(stream: Any, path: str) -> Iterator[list[bytes]]:
    """Reads whole lines, some MiB at a time."""
    rest, number = stream.read(3).removeprefix(b"\xef\xbb\xbf"), 0
    while data := stream.read(_BLOCK_BYTES):
        lines = (rest + data).splitlines(keepends=True)
        # A line that ends in \r may go on with \n.
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        number += len(lines)
        if len(rest) > MAX_LINE_BYTES:
            why = f"is no JSON object: the line has more than {MAX_LINE_BYTES:,} bytes"
            raise InputError(why, file=path, row=number + 1)
        yield lines
    yield rest.splitlines()


def _refuse_sparse(columns: int, rows: int, path: str) -> None:
    """Refuses rows with few of very many columns: a block of them has a cell for each."""
    if columns * rows > MAX_BLOCK_CELLS:
        raise InputError(f"has {columns:,} columns, and most rows have few of them", file=path)


def _refuse_deep(value: Any, depth: int = 0) -> None:
    if depth == MAX_DEPTH_LEVELS:
        raise RecursionError
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (list, dict)):
            _refuse_deep(inner, depth + 1)


class _Kind:
    """Finds the common Arrow type of all cells of a column; text where there is none."""

    def __init__(self) -> None:
        self.type = pa.null()
        self._has_large = False

    def add(self, cells: list[Any]) -> None:
        """Takes the cells of a block."""
        import pyarrow.compute as pc

        if pa.types.is_string(self.type):
            return
        try:
            array = pa.array(cells)
            if pa.types.is_floating(array.type) and bool in set(map(type, cells)):
                raise TypeError  # Arrow takes a flag behind a real for 1
            schemas = [pa.schema([("", kind)]) for kind in (self.type, array.type)]
            self.type = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        except (pa.ArrowException, OverflowError, TypeError):
            self.type = pa.string()
            return
        if pa.types.is_integer(array.type):
            least, most = pc.min_max(array).as_py().values()
            self._has_large |= max(-(least or 0), most or 0) > 2**53
        # Such whole numbers have no exact place among reals.
        if self._has_large and pa.types.is_floating(self.type):
            self.type = pa.string()


def _array(cells: list[Any], kind: Any) -> Any:
    if kind == pa.string():
        cells = [cell if cell is None or isinstance(cell, str) else _text(cell) for cell in cells]
    return pa.array(cells, kind)


def _text(cell: Any) -> str:
    """A cell as JSON has it; JSON has no infinity."""
    return str(cell) if isinstance(cell, float) and isinf(cell) else msgspec.json.encode(cell).decode()
