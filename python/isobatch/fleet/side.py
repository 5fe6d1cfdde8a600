"""One side of a fleet, the jobs or the clusters: a table of any kind, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError, missing, must_be, together
from isobatch.fleet.columns import (
    CLUSTER_FIELDS,
    JOB_FIELDS,
    MISSING,
    SETTINGS_FIELDS,
    Data,
    as_array,
    checked,
    filled,
    of_arrow,
    of_numpy,
    said,
    without_views,
)
from isobatch.fleet.frames import mixed_as_texts
from isobatch.fleet.made import MOST_CLUSTERS
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.names import how_to_multiply
from isobatch.recipes.recipe import Recipe
from isobatch.words import OURS, few, nearest, printable, redacted, shown

if TYPE_CHECKING:
    import pyarrow as pa

_RECORD = {"job": "a Recipe", "cluster": "a Cluster or a whole number of GPUs"}
_RECORDS = {"job": "Recipes", "cluster": "Clusters or whole numbers of GPUs"}


@dataclass(frozen=True)
class Side:
    """One side of a fleet: `known` columns for the core, `ids` of its rows, and the rest, `carried` along.

    `ids` is None where no column names the rows: they are then numbered from `number`; `nameless` says of each row whether its id is
    missing, None where none is. In `file`, `before` rows come before these.
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
    nameless: NDArray[np.bool_] | None = None

    def where(self, row: int) -> str:
        """A row in words."""
        file = f"{printable(redacted(self.file))}, " if self.file else ""
        place = f"({file}row {self.before + row + 1:,})"
        if self.nameless is not None and self.nameless[row]:
            return f"a {self.kind} without an id {place}"
        return f"{self.kind} {printable(str(self.numbered[row]), 80)} {place}"

    @property
    def named_ids(self) -> Any:
        """The ids of the rows that have one."""
        if self.nameless is None:
            return self.ids
        if not self.arrow:
            return self.ids[~self.nameless]
        import pyarrow as pa

        return self.ids.filter(pa.array(~self.nameless))

    def id_fault(self, row: int) -> InputError:
        """What is said of a row whose id is missing."""
        if _is_blank(self, row):
            return InputError("the row is blank: delete it")
        return missing(self.kind, "each row needs an id")

    def cell(self, field: str, row: int) -> Any:
        """A known column's value in a row; None where it is not known, or there is no such column."""
        data = dict(self.known).get(field)
        if data is None:
            return None
        value = data[1][data[0][row]] if isinstance(data, tuple) else data[row].item()
        return None if value in (None, "") or value == MISSING or value != value else value

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

    def row(self, at: int) -> Side:
        """One row, without the texts of all others."""
        cut = self.slice(at, at + 1)
        return replace(cut, known=[(name, _of_row(data, at)) for name, data in self.known])

    def slice(self, start: int, stop: int) -> Side:
        """The rows from start to stop."""
        cut = slice(start, stop)
        known = [(name, (d[0][cut], d[1]) if isinstance(d, tuple) else d[cut]) for name, d in self.known]
        carried = {name: column[cut] for name, column in self.carried.items()}
        ids = None if self.ids is None else self.ids[cut]
        nameless = None if self.nameless is None else self.nameless[cut]
        rows = min(stop, self.rows) - start
        return replace(
            self,
            rows=rows,
            known=known,
            ids=ids,
            carried=carried,
            before=self.before + start,
            number=self.number + start,
            nameless=nameless,
        )


def _of_row(data: Data, at: int) -> Data:
    if isinstance(data, tuple):
        return np.zeros(1, np.uint32), [data[1][data[0][at]]]
    return data[at : at + 1]


def gpu_types_of(clusters: Side) -> dict[str, str]:
    """The GPU type of each cluster that has one, by the cluster's name in a table of plans; of very many clusters none."""
    data = dict(clusters.known).get("gpu")
    if not isinstance(data, tuple) or clusters.rows > MOST_CLUSTERS:
        return {}
    names, (at, types) = clusters.numbered, data
    named = names.tolist() if hasattr(names, "tolist") else names.to_pylist()
    return {str(name): types[place] for name, place in zip(named, at.tolist(), strict=True) if types[place]}


def side_of(
    kind: str, source: Any, *, file: str | None = None, before: int = 0, number: int = 0, unique: bool = True
) -> Side:
    """A job or cluster table from anything tabular: a mapping of arrays, an Arrow stream, records, a Cluster, GPU counts.

    Raises:
        InputError: it is none of these, a column is missing or of a type that cannot be read, a cluster's id is missing, or an id
            is not unique where it must be.
    """
    if isinstance(source, (Recipe, Cluster)) or (type(source) is int and kind == "cluster"):
        source = [source]
    if hasattr(source, "__arrow_c_stream__") and len(getattr(source, "shape", ())) == 1:
        source = np.asarray(source)  # a Series, which is no table
    if kind == "cluster" and (counts := _gpu_counts(source)) is not None:
        source = {"gpus_per_node": counts}
    elif isinstance(source, np.ndarray) and source.ndim == 1:
        source = source.tolist()
    if hasattr(source, "__arrow_c_stream__"):
        table = _from_arrow(kind, source, file)
    elif isinstance(source, Mapping):
        columns = {str(name): as_array(str(name), column, file) for name, column in source.items()}
        table = _from_numpy(kind, columns, file)
    elif isinstance(source, (Sequence, range)) and not isinstance(source, str):
        table = _from_numpy(kind, _of_records(kind, source), file)
    else:
        raise InputError(
            f"the {kind}s must be a mapping of NumPy arrays, an object with __arrow_c_stream__, a path, or a sequence of "
            f"{_RECORDS[kind]}, got a {type(source).__name__}",
            field=kind,
        )
    table = replace(table, file=file, before=before, number=number)
    return _with_checked_ids(table) if unique else table


def _gpu_counts(source: Any) -> NDArray[Any] | None:
    """GPU counts as an array, without a record for each: there may be millions."""
    if isinstance(source, range):
        return np.arange(source.start, source.stop, source.step)
    if isinstance(source, np.ndarray):
        return source if source.ndim == 1 and source.dtype.kind in "iu" else None
    if isinstance(source, (list, tuple)) and source and set(map(type, source)) == {int}:
        array = np.asarray(source)
        return array if array.dtype.kind in "iu" else None
    return None


def _of_records(kind: str, records: Sequence[Any]) -> dict[str, NDArray[Any]]:
    cls = Recipe if kind == "job" else Cluster
    made = [Cluster(nodes=1, gpus_per_node=r) if kind == "cluster" and type(r) is int else r for r in records]
    for row, record in enumerate(made, 1):
        if type(record) is not cls:
            raise must_be(_RECORD[kind], record, row=row, field=kind)
    columns = {}
    for name in cls.__struct_fields__:
        column = np.empty(len(made), dtype=object)
        column[:] = [getattr(record, name) for record in made]
        columns[name] = column
    return columns


def fields_of(kind: str) -> tuple[str, ...]:
    """The columns of a side that are read; others are carried along."""
    return (*(JOB_FIELDS if kind == "job" else CLUSTER_FIELDS), *SETTINGS_FIELDS)


def needed_of(kind: str) -> tuple[str, ...]:
    """The columns that a side must have."""
    return ("effective_batch", "lr") if kind == "job" else ("nodes",)


def _split(kind: str, names: Sequence[str], file: str | None) -> tuple[list[str], list[str]]:
    """(known, carried) names; refuses doubled ones and a table without what it must have."""
    doubled = sorted({name for name in names if list(names).count(name) > 1})
    if doubled:
        raise InputError(f"the column {doubled[0]!r} is in the header twice", file=file, field=doubled[0])
    fields = fields_of(kind)
    needed = () if "gpus_per_node" in names and kind == "cluster" else needed_of(kind)
    faults = []
    for name in needed:
        if name not in names:
            close = next(
                (other for other in names if other not in fields and nearest(other, needed) == name), None
            )
            has = f"the columns are {few(names, 40) or 'none'}"
            product = None
            if name == "effective_batch" and OURS.get(str(close).lower()) != name:
                product = how_to_multiply(names, in_python=file is None)
            todo = (
                product
                if product
                else f"rename {close!r}?"
                if close
                else f"add it or gpus_per_node ({has})"
                if kind == "cluster"
                else has
            )
            faults.append(missing(name, todo, file=file))
    if faults:
        raise together(faults)
    return [n for n in names if n in fields], [n for n in names if n not in fields and n != kind]


def _with_checked_ids(side: Side) -> Side:
    """The side, which knows of which rows the ids are missing: a job without one gets a reason, since others can be planned without it.

    Raises:
        InputError: an id is doubled, or a cluster has none: each job would be planned on it.
    """
    nameless = missing_ids(side.ids)
    if nameless is not None and side.kind != "job":
        row = int(np.argmax(nameless))
        raise side.id_fault(row).at(file=side.file, row=side.before + row + 1)
    side = replace(side, nameless=nameless)
    if not _are_unique(side):
        _refuse_double(side)
    return side


def missing_ids(ids: Any) -> NDArray[np.bool_] | None:
    """Which ids are null, NaN or an empty text; None where none is."""
    if ids is None:
        return None
    if hasattr(ids, "null_count"):
        return _missing_in_arrow(ids)
    if ids.dtype.kind in "biu" and not isinstance(ids, np.ma.MaskedArray):
        return None
    found = np.fromiter((_is_missing(it) for it in ids.tolist()), np.bool_, len(ids))
    return found if found.any() else None


def _is_missing(name: Any) -> bool:
    return name is None or (isinstance(name, str) and not name) or (isinstance(name, float) and name != name)


def _missing_in_arrow(ids: pa.ChunkedArray) -> NDArray[np.bool_] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = ids.type
    if pa.types.is_dictionary(kind):
        ids, kind = ids.cast(kind.value_type), kind.value_type
    found = pc.is_null(ids, nan_is_null=True)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = pc.or_(found, pc.fill_null(pc.equal(ids, ""), fill_value=True))
    return found.to_numpy() if pc.any(found).as_py() else None


def _are_unique(side: Side) -> bool:
    """Whether the ids that are there are certainly all different; the slow look says which is not."""
    if side.ids is None:
        return True
    named = side.named_ids
    if side.arrow:
        import pyarrow as pa

        try:
            return len(named.unique()) == len(named)
        except pa.ArrowNotImplementedError:
            return False
    ids = named.tolist()
    try:
        return len(set(ids)) == len(ids)
    except TypeError:
        return False


def _refuse_double(side: Side) -> None:
    ids = side.ids.to_pylist() if side.arrow else side.ids.tolist()
    first: dict[Any, int] = {}
    for row, name in enumerate(ids, side.before + 1):
        if side.nameless is not None and side.nameless[row - side.before - 1]:
            continue
        try:
            before = first.setdefault(name, row)
        except TypeError:
            raise must_be("a text or a number", name, field=side.kind, file=side.file, row=row) from None
        if before != row:
            raise double_id(side, name, row, f"row {before:,}")


def double_id(side: Side, name: Any, row: int, other: str) -> InputError:
    """An id that two rows have; `row` counts from 1 in the file, `other` is the earlier one's place in words."""
    return InputError(
        f"duplicate {side.kind} id {shown(name)} (also in {other})", file=side.file, row=row, field=side.kind
    )


def _is_blank(side: Side, row: int) -> bool:
    """Whether no cell of a row says anything, as in the rows that a spreadsheet has below its table."""
    carried = [column[row] for column in side.carried.values()]
    cells = [cell.as_py() if hasattr(cell, "as_py") else cell for cell in carried]
    return all(
        cell is None or cell == "" for cell in [*(side.cell(name, row) for name, _ in side.known), *cells]
    )


def _from_numpy(kind: str, columns: dict[str, NDArray[Any]], file: str | None) -> Side:
    known, carried = _split(kind, list(columns), file)
    rows = len(next(iter(columns.values())))
    for name, column in columns.items():
        if len(column) != rows:
            raise InputError(
                f"{name} must have {rows:,} values as the other columns, got {len(column):,}",
                file=file,
                field=name,
            )
    return Side(
        kind,
        rows,
        said([(name, checked(name, of_numpy(name, columns[name], file))) for name in known]),
        columns.get(kind),
        {name: columns[name] for name in carried},
        arrow=False,
    )


def _from_arrow(kind: str, source: Any, file: str | None) -> Side:
    import pyarrow as pa

    table = source if isinstance(source, pa.Table) else _table_of(kind, source, file)
    for index, column in enumerate(table.columns):
        plain = without_views(column)
        if plain is not column:
            table = table.set_column(index, table.column_names[index], plain)
    known, carried = _split(kind, table.column_names, file)
    return Side(
        kind,
        table.num_rows,
        said([(name, checked(name, of_arrow(name, table[name], file))) for name in known]),
        table[kind] if kind in table.column_names else None,
        {name: table[name] for name in carried},
        arrow=True,
    )


def _table_of(kind: str, source: Any, file: str | None) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.table(source)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        texts = mixed_as_texts(source)
        if texts is not None:
            with suppress(pa.ArrowException, UnicodeError):
                return pa.table(texts)
        # Of a data frame, pyarrow's second sentence names the column.
        why = "; ".join(str(part) for part in error.args)
        raise InputError(
            f"the {kind} table cannot be read: {printable(why, 300)}. A column has values of one kind",
            file=file,
            field=kind,
        ) from None


def with_defaults(table: Side, settings: dict[str, Any]) -> Side:
    """The table with the call's keyword where a row says nothing of a setting."""
    known = [(n, filled(d, settings[n]) if settings.get(n) is not None else d) for n, d in table.known]
    return replace(table, known=known)
