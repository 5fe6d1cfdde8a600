"""The jobs or the clusters of a fleet: a table of any kind, read and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError, missing, must_be, needs_extra, raise_all
from isobatch.files.limits import refuse_columns
from isobatch.fleet.columns import (
    CLUSTER_FIELDS,
    JOB_FIELDS,
    MISSING,
    SETTINGS_FIELDS,
    Data,
    as_array,
    fields_for_core,
    fill_missing,
    floats_of,
    known_text,
    of_arrow,
    of_numpy,
    with_decimal,
    without_views,
)
from isobatch.fleet.ids import missing_ids, refuse_duplicates, refuse_unreadable
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.names import how_to_multiply
from isobatch.recipes.recipe import Recipe
from isobatch.words import OURS, few, nearest, printable

if TYPE_CHECKING:
    import pyarrow as pa

_RECORD = {
    "job": "a Recipe",
    "cluster": "a Cluster or a whole number of GPUs",
    "node": "a mapping",
    "held": "a mapping",
}

FIELDS = {"job": (*JOB_FIELDS, *SETTINGS_FIELDS), "cluster": (*CLUSTER_FIELDS, *SETTINGS_FIELDS)}
"""The fields of a table; other columns are repeated in the result."""
REQUIRED = {
    "job": ("effective_batch", "lr"),
    "cluster": ("nodes",),
    "node": ("gpus",),
    "held": ("job", "node", "gpus"),
}
"""The required columns of a table."""


@dataclass(frozen=True)
class InputTable:
    """The jobs or the clusters of a fleet, or some rows of them.

    `kind` is "job", "cluster", "node" or "held". `fields` are the columns for the core, `extra` the others,
    repeated in the result, as `ids` in Arrow or NumPy. Rows without a column of ids are numbered from
    `first_id`. They are `row_offset` rows behind the first of `file`. `missing_ids` marks those without an
    id; None: all have one.
    """

    kind: str
    rows: int
    fields: list[tuple[str, Data]]
    ids: Any
    extra: dict[str, Any]
    arrow: bool
    file: str | None = None
    row_offset: int = 0
    first_id: int = 0
    missing_ids: NDArray[np.bool_] | None = None

    def where(self, row: int) -> str:
        """Returns the place of a row in words."""
        file = f"{printable(self.file)}, " if self.file else ""
        place = f"({file}row {self.row_offset + row + 1:,})"
        if self.missing_ids is not None and self.missing_ids[row]:
            return f"a {self.kind} without an id {place}"
        return f"{self.kind} {printable(str(self.row_ids[row]), 80)} {place}"

    def id_fault(self, row: int) -> InputError:
        """Returns the error of a row without an id."""
        extra = (column[row] for column in self.extra.values())
        cells = [cell.as_py() if hasattr(cell, "as_py") else cell for cell in extra]
        cells += [self.cell(name, row) for name, _ in self.fields]
        # As are the rows that a spreadsheet has below its table.
        if all(cell is None or cell == "" for cell in cells):
            return InputError("the row is blank: delete it")
        return missing(self.kind, "each row needs an id")

    def cell(self, field: str, row: int) -> Any:
        """Returns the value of a field in a row; None where it is not known, or there is no such column."""
        value: Any = self.row(row).cells(field)[0]
        return value

    def cells(self, field: str) -> list[Any]:
        """Returns the values of a field in all rows; None if unknown, or if there is no such column."""
        data = dict(self.fields).get(field)
        if data is None:
            return [None] * self.rows
        if isinstance(data, tuple):
            texts = [None if text == "" else text for text in data[1]]
            return [texts[code] for code in data[0].tolist()]
        return [None if value == MISSING or value != value else value for value in data.tolist()]

    def reals(self, field: str) -> NDArray[np.float64]:
        """Returns the numbers of a field in all rows, texts too; NaN if unknown, or without such a column."""
        data = dict(self.fields).get(field)
        if data is None:
            return np.full(self.rows, np.nan)
        if isinstance(data, tuple):
            return floats_of(data[1])[data[0]]
        return np.where(data == MISSING, np.nan, data)

    def has(self, field: str) -> bool:
        """Tells whether a field may be known in some row: a file, read in blocks, only needs the column."""
        data = dict(self.fields).get(field)
        if data is None or self.arrow or isinstance(data, tuple):
            return data is not None
        return not (data != data).all()

    @property
    def row_ids(self) -> Any:
        """The ids; the rows' numbers where no column names them."""
        if self.ids is not None:
            return self.ids
        numbers = np.arange(self.first_id, self.first_id + self.rows)
        if not self.arrow:
            return numbers
        import pyarrow as pa

        return pa.chunked_array([pa.array(numbers)])

    @property
    def id_list(self) -> list[Any]:
        """The ids as Python's values."""
        ids = self.row_ids
        names: list[Any] = ids.to_pylist() if self.arrow else ids.tolist()
        return names

    @cached_property
    def rows_by_id(self) -> dict[str, int]:
        """The rows by their ids, as texts."""
        return {str(name): row for row, name in enumerate(self.id_list)}

    def row(self, at: int) -> InputTable:
        """Returns one row, without the texts of all others."""
        part = self.slice(at, at + 1)
        fields = [
            (name, (np.zeros(1, np.uint32), [d[1][d[0][0]]]) if isinstance(d, tuple) else d)
            for name, d in part.fields
        ]
        return replace(part, fields=fields)

    def slice(self, start: int, stop: int) -> InputTable:
        """Returns the rows from start to stop."""
        cut = slice(start, stop)
        return replace(
            self,
            rows=min(stop, self.rows) - start,
            fields=[(name, (d[0][cut], d[1]) if isinstance(d, tuple) else d[cut]) for name, d in self.fields],
            ids=None if self.ids is None else self.ids[cut],
            extra={name: column[cut] for name, column in self.extra.items()},
            row_offset=self.row_offset + start,
            first_id=self.first_id + start,
            missing_ids=None if self.missing_ids is None else self.missing_ids[cut],
        )

    def with_defaults(self, settings: Mapping[str, Any]) -> InputTable:
        """Returns the table with the call's keyword where a row says nothing of a setting."""
        fields = [
            (name, data if settings.get(name) is None else fill_missing(data, settings[name]))
            for name, data in self.fields
        ]
        return replace(self, fields=fields)


def input_table(
    kind: str,
    source: Any,
    *,
    file: str | None = None,
    row_offset: int = 0,
    first_id: int = 0,
    unique: bool = True,
    decimal: str | None = None,
) -> InputTable:
    """Reads a table from anything tabular: arrays, mappings, an Arrow stream, records, a Cluster, GPU counts.

    A job without an id gets a reason; a cluster without one is refused, as all jobs would be planned on it.
    """
    place, source = table_at(source)
    file = file or place
    if isinstance(source, (Recipe, Cluster)) or (type(source) is int and kind == "cluster"):
        source = [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(row, Mapping) for row in source):
        source = {name: [row.get(name) for row in source] for name in dict.fromkeys(chain(*source))}
    if hasattr(source, "__arrow_c_stream__") and len(getattr(source, "shape", ())) == 1:
        source = np.asarray(source)  # a Series, which is no table
    if kind == "cluster" and (counts := _gpu_counts(source)) is not None:
        source = {"gpus_per_node": counts}
    elif isinstance(source, np.ndarray) and source.ndim == 1:
        source = source.tolist()
    if hasattr(source, "__arrow_c_stream__"):
        arrow_table = _table_of(kind, source, file)
        refuse_columns(arrow_table.column_names, file)
        columns = {name: without_views(arrow_table[name]) for name in arrow_table.column_names}
        refuse_unreadable(kind, columns.get(kind), file)
        table = _of_columns(kind, columns, arrow_table.num_rows, file, arrow=True)
    elif isinstance(source, Mapping):
        columns = {str(name): as_array(str(name), column, file) for name, column in source.items()}
        table = _of_columns(kind, columns, _equally_long(columns, file), file, arrow=False)
    elif isinstance(source, (Sequence, range)) and not isinstance(source, str):
        table = _of_columns(kind, _of_records(kind, source), len(source), file, arrow=False)
    else:
        legal = "a mapping of NumPy arrays, an object with __arrow_c_stream__, a path, or a sequence, each"
        tables = "held" if kind == "held" else f"the {kind}s"
        expected = f"{_RECORD[kind]}, got a {type(source).__name__}"
        raise InputError(f"{tables} must be {legal} {expected}", field=kind)
    fields = [(name, with_decimal(name, data, decimal)) for name, data in table.fields]
    table = replace(table, fields=fields, file=file, row_offset=row_offset, first_id=first_id)
    if not unique:
        return table
    nameless = missing_ids(table.ids)
    if nameless is not None and kind != "job":
        row = int(np.argmax(nameless))
        raise table.id_fault(row).at(file=file, row=row_offset + row + 1)
    refuse_duplicates(kind, table.ids, nameless, file, row_offset)
    return replace(table, missing_ids=nameless)


def table_at(source: Any) -> tuple[str | None, Any]:
    """Reads a table from files if the source is a path or URL; returns the path, else None, and the table."""
    if not isinstance(source, (str, os.PathLike)):
        return None, source
    try:
        from isobatch.files.read import read_table
    except ModuleNotFoundError:
        raise needs_extra("tables in files", "fleet", file=os.fspath(source)) from None
    return os.fspath(source), read_table(source)


def _gpu_counts(source: Any) -> NDArray[Any] | None:
    """Reads GPU counts as an array, without a record for each: there may be millions."""
    if isinstance(source, range):
        return np.arange(source.start, source.stop, source.step)
    if isinstance(source, np.ndarray):
        return source if source.ndim == 1 and source.dtype.kind in "iu" else None
    if isinstance(source, (list, tuple)) and source and set(map(type, source)) == {int}:
        array = np.asarray(source)
        return array if array.dtype.kind in "iu" else None
    return None


def _of_records(kind: str, records: Sequence[Any]) -> dict[str, NDArray[Any]]:
    cls: Any = {"job": Recipe, "cluster": Cluster}.get(kind, dict)
    every = []
    for row, record in enumerate(records, 1):
        is_count = kind == "cluster" and type(record) is int
        every.append(Cluster(nodes=1, gpus_per_node=record) if is_count else record)
        if type(every[-1]) is not cls:
            raise must_be(_RECORD[kind], record, row=row, field=kind)
    columns = {name: np.empty(len(every), object) for name in getattr(cls, "__struct_fields__", ())}
    for name, column in columns.items():
        column[:] = [getattr(record, name) for record in every]
    return columns


def _of_columns(
    kind: str, columns: Mapping[str, Any], rows: int, file: str | None, *, arrow: bool
) -> InputTable:
    known = FIELDS.get(kind, ())
    _refuse_names(kind, list(columns), file)
    read = of_arrow if arrow else of_numpy
    return InputTable(
        kind,
        rows,
        fields_for_core([(name, read(name, columns[name], file)) for name in columns if name in known]),
        columns.get(kind),
        {name: column for name, column in columns.items() if name not in known and name != kind},
        arrow=arrow,
    )


def _refuse_names(kind: str, names: Sequence[str], file: str | None) -> None:
    needed = () if "gpus_per_node" in names and kind == "cluster" else REQUIRED[kind]
    absent = (name for name in needed if name not in names)
    raise_all(missing(name, _hint(kind, name, names, needed, file), file=file) for name in absent)


def _hint(kind: str, name: str, names: Sequence[str], needed: Sequence[str], file: str | None) -> str:
    """Returns a way out of a missing column: multiply others, rename one, or add it."""
    unknown = [field for field in names if field not in FIELDS.get(kind, CLUSTER_FIELDS)]
    meant = {"count": "gpus"} if kind == "node" else {}
    close = next((field for field in unknown if meant.get(field) or nearest(field, needed) == name), None)
    if name == "effective_batch" and OURS.get(str(close).lower()) != name:
        product = how_to_multiply(names, in_python=file is None)
        if product:
            return product
    if close:
        return f"rename {close!r}?"
    has = f"the columns are {few(names, 40) or 'none'}"
    if kind == "cluster" and set(REQUIRED["job"]) <= set(names):
        return f"these are jobs: pass them first, then the {kind}s ({has})"
    return f"add it or gpus_per_node ({has})" if kind == "cluster" else has


def _equally_long(columns: Mapping[str, NDArray[Any]], file: str | None) -> int:
    """Returns the common length of all columns."""
    rows = len(next(iter(columns.values()), ()))
    for name, column in columns.items():
        if len(column) != rows:
            why = f"{name} must have {rows:,} values as the other columns, got {len(column):,}"
            raise InputError(why, file=file, field=name)
    return rows


def _table_of(kind: str, source: Any, file: str | None) -> pa.Table:
    import pyarrow as pa

    if isinstance(source, pa.Table):
        return source
    try:
        return pa.table(source)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        texts = _mixed_as_texts(source)
        if texts is not None:
            with suppress(pa.ArrowException, UnicodeError):
                return pa.table(texts)
        # Of a data frame, pyarrow's second sentence names the column.
        why = printable("; ".join(str(part) for part in error.args), 300)
        text = f"the {kind} table cannot be read: {why}. A column has values of one kind"
        raise InputError(text, file=file, field=kind) from None


def _mixed_as_texts(source: Any) -> Any:
    """Reads columns of mixed kinds in a pandas frame as texts, so each row is judged by its own cell."""
    if type(source).__module__.partition(".")[0] != "pandas" or not hasattr(source, "isetitem"):
        return None
    frame = source.copy(deep=False)
    for place in range(frame.shape[1]):
        cells = frame.iloc[:, place].tolist() if str(frame.dtypes.iloc[place]) == "object" else []
        if len({type(cell) for cell in cells}) < 2:
            continue
        if any(isinstance(cell, (list, tuple, dict, set)) or hasattr(cell, "dtype") for cell in cells):
            return None
        frame.isetitem(place, [known_text(cell) for cell in cells])
    return frame
