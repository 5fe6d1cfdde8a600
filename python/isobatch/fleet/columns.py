"""Tables of any kind as the columns that the core takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.errors import InputError
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.schedules import check_spec

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = np.iinfo(np.int64).min
"""A whole number that is not known, as the core reads it."""

JOB_FIELDS, CLUSTER_FIELDS, SETTINGS_FIELDS = (
    tuple(name for name, table, _ in _core.fields() if table == kind)
    for kind in ("job", "cluster", "settings")
)

_RECORDS = {"job": "Recipe", "cluster": "Cluster or whole numbers of GPUs"}

Codes = tuple[NDArray[np.uint32], list[str | None]]
Data = NDArray[np.int64] | NDArray[np.float64] | Codes


@dataclass(frozen=True)
class Table:
    """One side of a fleet: `known` columns for the core, `ids` of its rows, and the rest, `carried` along.

    `ids` is None where no column names the rows: they are then numbered from `number`. In `file`, `before` rows come before
    these.
    """

    kind: str
    rows: int
    known: list[tuple[str, Data]]
    ids: Any
    carried: dict[str, Any]
    arrow: bool
    file: str | None = None
    before: int = 0
    number: int = 0

    def where(self, row: int) -> str:
        """A row in words."""
        file = f"{self.file}, " if self.file else ""
        return f"{self.kind} {self.numbered[row]} ({file}row {self.before + row + 1})"

    @property
    def numbered(self) -> Any:
        """The ids; the rows' numbers where no column names them."""
        if self.ids is not None:
            return self.ids
        numbers = np.arange(self.number, self.number + self.rows)
        if not self.arrow:
            return numbers
        import pyarrow as pa

        return pa.chunked_array([pa.array(numbers)])

    def slice(self, start: int, stop: int) -> Table:
        """The rows from start to stop."""
        cut = slice(start, stop)
        known = [(name, (d[0][cut], d[1]) if isinstance(d, tuple) else d[cut]) for name, d in self.known]
        carried = {name: column[cut] for name, column in self.carried.items()}
        ids = None if self.ids is None else self.ids[cut]
        rows = min(stop, self.rows) - start
        return replace(
            self,
            rows=rows,
            known=known,
            ids=ids,
            carried=carried,
            before=self.before + start,
            number=self.number + start,
        )


def table_of(
    kind: str, source: Any, *, file: str | None = None, before: int = 0, number: int = 0, unique: bool = True
) -> Table:
    """A job or cluster table from anything tabular: a mapping of arrays, an Arrow stream, records, a Cluster, GPU counts.

    Raises:
        InputError: it is none of these, a column is missing or of a type that cannot be read, an id is missing, or stands twice
            where they shall be unique.
    """
    if isinstance(source, (Recipe, Cluster)) or (type(source) is int and kind == "cluster"):
        source = [source]
    elif isinstance(source, np.ndarray) and source.ndim == 1 and kind == "cluster":
        source = source.tolist()
    if hasattr(source, "__arrow_c_stream__"):
        table = _from_arrow(kind, source, file)
    elif isinstance(source, Mapping):
        columns = {str(name): _array(str(name), column, file) for name, column in source.items()}
        table = _from_numpy(kind, columns, file)
    elif isinstance(source, (Sequence, range)) and not isinstance(source, str):
        table = _from_numpy(kind, _of_records(kind, source), file)
    else:
        raise InputError(
            f"{type(source).__name__} is not a table; legal: a mapping of NumPy arrays, an object with __arrow_c_stream__, "
            f"a path, or a sequence of {_RECORDS[kind]}",
            field=kind,
        )
    table = replace(table, file=file, before=before, number=number)
    if unique:
        _check_ids(table)
    return table


def _of_records(kind: str, records: Sequence[Any]) -> dict[str, NDArray[Any]]:
    cls = Recipe if kind == "job" else Cluster
    made = [Cluster(nodes=1, gpus_per_node=r) if kind == "cluster" and type(r) is int else r for r in records]
    for row, record in enumerate(made, 1):
        if type(record) is not cls:
            raise InputError(f"{record!r} is not legal; legal: {_RECORDS[kind]}", row=row, field=kind)
    columns = {}
    for name in cls.__struct_fields__:
        column = np.empty(len(made), dtype=object)
        column[:] = [getattr(record, name) for record in made]
        columns[name] = column
    return columns


def _array(name: str, column: Any, file: str | None) -> NDArray[Any]:
    array: NDArray[Any]
    if isinstance(column, np.ndarray):
        array = column
    else:
        try:
            array = np.asarray(column)
        except ValueError:  # lists of unequal length
            array = np.empty(len(column), dtype=object)
            array[:] = column
    if array.ndim == 2 and name == "betas" and array.shape[1] == 2:
        pairs = np.empty(len(array), dtype=object)
        pairs[:] = [(float(first), float(second)) for first, second in array]
        return pairs
    if array.ndim != 1:
        raise InputError(f"an array of {array.ndim} dimensions is not a column", file=file, field=name)
    return array


def _split(kind: str, names: Sequence[str], file: str | None) -> tuple[list[str], list[str]]:
    """(known, carried) names; refuses doubled ones and a table without what it must have."""
    doubled = sorted({name for name in names if list(names).count(name) > 1})
    if doubled:
        raise InputError("the column stands twice in the header", file=file, field=doubled[0])
    fields = (*(JOB_FIELDS if kind == "job" else CLUSTER_FIELDS), *SETTINGS_FIELDS)
    needed = (
        ("effective_batch", "lr") if kind == "job" else ("nodes",) if "gpus_per_node" not in names else ()
    )
    for name in needed:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean it by {close[0]!r}?" if close else ""
            raise InputError(
                f"the column is missing; there are: {', '.join(names) or 'none'}{hint}", file=file, field=name
            )
    return [n for n in names if n in fields], [n for n in names if n not in fields and n != kind]


def _check_ids(table: Table) -> None:
    if table.ids is None or (
        table.arrow and not table.ids.null_count and len(table.ids.unique()) == table.rows
    ):
        return
    ids = table.ids.to_pylist() if table.arrow else table.ids.tolist()
    if len(set(ids)) == len(ids) and None not in ids:
        return
    first: dict[Any, int] = {}
    for row, name in enumerate(ids, table.before + 1):
        if name is None:
            raise InputError("missing", file=table.file, row=row, field=table.kind)
        if name in first:
            raise InputError(
                f"{name!r} stands already in row {first[name]}", file=table.file, row=row, field=table.kind
            )
        first[name] = row


# NumPy


def _from_numpy(kind: str, columns: dict[str, NDArray[Any]], file: str | None) -> Table:
    known, carried = _split(kind, list(columns), file)
    rows = len(next(iter(columns.values())))
    for name, column in columns.items():
        if len(column) != rows:
            raise InputError(f"{len(column)} values where other columns have {rows}", file=file, field=name)
    return Table(
        kind,
        rows,
        _told([(name, _checked(name, _numpy_data(name, columns[name], file))) for name in known]),
        columns.get(kind),
        {name: columns[name] for name in carried},
        arrow=False,
    )


def _numpy_data(name: str, column: NDArray[Any], file: str | None) -> Data:
    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    values = np.asarray(column)
    if values.dtype.kind in "bi" or (values.dtype.kind == "u" and values.dtype.itemsize < 8):
        integers = np.ascontiguousarray(values, dtype=np.int64)
        return integers if mask is None else np.where(mask, MISSING, integers)
    if values.dtype.kind in "uf":
        reals = np.ascontiguousarray(values, dtype=np.float64)
        return reals if mask is None else np.where(mask, np.nan, reals)
    if values.dtype.kind in "UO":
        texts = values.tolist()
        if mask is not None:
            texts = [None if hidden else text for text, hidden in zip(texts, mask.tolist(), strict=True)]
        return _factorize(texts)
    raise InputError(f"values of type {values.dtype} are not legal", file=file, field=name)


def _factorize(values: list[Any]) -> Codes:
    numbers: dict[Any, int] = {}
    codes = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.uint32, len(values))
    return codes, [_text(value) for value in numbers]


def _text(value: Any) -> str | None:
    """A cell as the text that the core reads; None where it is not known."""
    if value is None or value == "" or value != value:
        return None
    return value if isinstance(value, str) else str(value)


def _told(columns: list[tuple[str, Data]]) -> list[tuple[str, Data]]:
    """The columns that say something in some row: setting a field to its default in every row costs as much as to a value."""
    return [(name, data) for name, data in columns if not (isinstance(data, tuple) and data[1] == [None])]


def _checked(name: str, data: Data) -> Data:
    """Texts that only Python can read are read here: an illegal one becomes the empty text, which the core refuses."""
    if name != "schedule" or not isinstance(data, tuple):
        return data
    return data[0], [text if text is None or _is_schedule(text) else "" for text in data[1]]


def _is_schedule(text: str) -> bool:
    try:
        check_spec(text)
    except InputError:
        return False
    return True


# Arrow


def _from_arrow(kind: str, source: Any, file: str | None) -> Table:
    import pyarrow as pa

    table = source if isinstance(source, pa.Table) else pa.table(source)
    for index, column in enumerate(table.columns):
        plain = _without_views(column)
        if plain is not column:
            table = table.set_column(index, table.column_names[index], plain)
    known, carried = _split(kind, table.column_names, file)
    return Table(
        kind,
        table.num_rows,
        _told([(name, _checked(name, _arrow_data(name, table[name], file))) for name in known]),
        table[kind] if kind in table.column_names else None,
        {name: table[name] for name in carried},
        arrow=True,
    )


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow's kernels do not take string views yet, which polars sends, for categories too."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if not (pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type)):
        return column
    chunks = [
        pa.DictionaryArray.from_arrays(it.indices, it.dictionary.cast(pa.string()), ordered=kind.ordered)
        for it in column.chunks
    ]
    return pa.chunked_array(chunks, pa.dictionary(kind.index_type, pa.string(), kind.ordered))


def _arrow_data(name: str, column: pa.ChunkedArray, file: str | None) -> Data:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_string(kind.value_type) and column.num_chunks == 1:
            return _of_dictionary(column.chunk(0))
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        integers = column.cast(pa.int64())
        return np.asarray((integers.fill_null(int(MISSING)) if integers.null_count else integers).to_numpy())
    if pa.types.is_floating(kind) or kind == pa.uint64() or pa.types.is_decimal(kind):
        reals = column.cast(pa.float64(), safe=False)
        return np.asarray((reals.fill_null(float("nan")) if reals.null_count else reals).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
        return _of_dictionary(encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint32), [None]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        return _factorize([None if pair is None else tuple(pair) for pair in column.to_pylist()])
    raise InputError(f"values of type {kind} are not legal", file=file, field=name)


def _of_dictionary(encoded: pa.DictionaryArray) -> Codes:
    import pyarrow as pa

    if len(encoded.dictionary) > len(encoded):
        # Most of its texts are not here.
        encoded = encoded.dictionary_decode().dictionary_encode()
    texts = [_text(text) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.cast(pa.uint32())
    if codes.null_count:
        codes = codes.fill_null(len(texts))
        texts.append(None)
    return codes.to_numpy(), texts


def with_defaults(table: Table, settings: dict[str, Any]) -> Table:
    """The table with the call's keyword where a row says nothing of a setting."""
    known = [(n, _filled(d, settings[n]) if settings.get(n) is not None else d) for n, d in table.known]
    return replace(table, known=known)


def _filled(data: Data, value: Any) -> Data:
    # A policy: numbers in some rows, a word in the others.
    if isinstance(value, str) and not isinstance(data, tuple):
        data = _factorize([_number(cell) for cell in data.tolist()])
    if isinstance(data, tuple):
        return data[0], [str(value) if text is None else text for text in data[1]]
    if data.dtype.kind == "i":
        return np.where(data == MISSING, value, data)
    return np.where(np.isnan(data), value, data)


def _number(cell: float) -> float | None:
    """A cell of numbers as one would write it: pandas has whole ones as reals where others are missing."""
    if cell == MISSING or cell != cell:
        return None
    return int(cell) if cell == cell // 1 else cell
