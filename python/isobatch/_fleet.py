"""Many plans in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch._columns import SETTINGS_FIELDS, Table, table_of, with_defaults
from isobatch._plan import Settings
from isobatch.errors import InputError
from isobatch.profile import Profile, workloads_of
from isobatch.reason import reasons_of

RESULTS = dict(_core.results())
"""Result columns of the core, with their NumPy types."""

STATUS = np.array(["ok", "caution", "infeasible"])


_Columns = tuple[int, list[tuple[str, Any]]]


@dataclass(frozen=True)
class Fleet:
    """A fleet that was read and checked, and is ready to be planned, whole or block by block."""

    jobs: Table
    clusters: Table
    settings: dict[str, Any]
    pairs: tuple[NDArray[np.uint32], NDArray[np.uint32]] | None
    columns: tuple[str, ...]
    workloads: _core.Workloads | None = None

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.jobs.rows * self.clusters.rows if self.pairs is None else len(self.pairs[0])

    @property
    def arrow(self) -> bool:
        """Whether the result is a `pyarrow.Table`."""
        return self.jobs.arrow or self.clusters.arrow

    @property
    def _sides(self) -> tuple[_Columns, _Columns]:
        return (self.jobs.rows, self.jobs.known), (self.clusters.rows, self.clusters.known)

    def fault(self, row: int) -> tuple[str, str] | None:
        """(field, its legal values) of what is illegal in a row of the result."""
        return _core.fleet_fault(*self._sides, self.settings, self.pairs, row)

    def where(self, row: int) -> str:
        """A row of the result in words."""
        if self.pairs is None:
            job, cluster = divmod(row, self.clusters.rows)
        else:
            job, cluster = (int(side[row]) for side in self.pairs)
        return f"job {self.jobs.ids[job]} (row {job + 1}), cluster {self.clusters.ids[cluster]} (row {cluster + 1})"

    def blocks(self, rows: int) -> Iterator[Fleet]:
        """Fleets of about so many rows that follow one another to the same result; one at least."""
        if self.rows == 0:
            yield self
            return
        if self.pairs is not None:
            jobs, clusters = self.pairs
            for start in range(0, len(jobs), rows):
                yield replace(self, pairs=(jobs[start : start + rows], clusters[start : start + rows]))
            return
        step = max(1, rows // max(1, self.clusters.rows))
        for start in range(0, self.jobs.rows, step):
            yield replace(self, jobs=self.jobs.slice(start, start + step))

    def plan(self) -> Any:
        """A `pyarrow.Table`, or a dict of arrays where dicts came in."""
        return self._assembled(self._computed(name for name in self.columns if name in RESULTS))

    def plan_with_status(self) -> tuple[Any, NDArray[np.uint8], NDArray[np.uint64]]:
        """The plan, and the status codes and reason bits of its rows, whether or not they are among its columns."""
        arrays = self._computed({"status", "reasons", *self.columns} & RESULTS.keys())
        return self._assembled(arrays), arrays["status"], arrays["reasons"]

    def _computed(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        results = list(names)
        return dict(
            zip(
                results,
                _core.plan_fleet(*self._sides, self.settings, self.pairs, results, self.workloads),
                strict=True,
            )
        )

    def _assembled(self, arrays: dict[str, NDArray[Any]]) -> Any:
        # Not where only results are asked for: naming the rows costs a tenth of planning them.
        jobs, clusters = self._rows() if set(self.columns) - RESULTS.keys() else (None, None)
        columns: dict[str, Any] = {}
        for name in self.columns:
            if name == "status":
                columns[name] = self._texts(STATUS, arrays[name])
            elif name in RESULTS:
                columns[name] = _to_arrow(name, arrays[name]) if self.arrow else arrays[name]
            else:
                table, rows = (
                    (self.jobs, jobs)
                    if name == "job" or name in self.jobs.carried
                    else (self.clusters, clusters)
                )
                columns[name] = self._taken(table.ids if name == table.kind else table.carried[name], rows)
        if not self.arrow:
            return columns
        import pyarrow as pa

        return pa.table(columns)

    def _rows(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The rows of the jobs and of the clusters, for each row of the result."""
        if self.pairs is not None:
            return self.pairs
        jobs, clusters = (np.arange(table.rows, dtype=np.uint32) for table in (self.jobs, self.clusters))
        return np.repeat(jobs, self.clusters.rows), np.tile(clusters, self.jobs.rows)

    def _texts(self, texts: NDArray[np.str_], codes: NDArray[np.uint8]) -> Any:
        if not self.arrow:
            return texts[codes]
        import pyarrow as pa

        return pa.array(texts.tolist()).take(pa.array(codes))

    def _taken(self, column: Any, rows: NDArray[Any] | None) -> Any:
        if not self.arrow:
            return column[rows]
        import pyarrow as pa

        return (pa.array(column) if isinstance(column, np.ndarray) else column).take(pa.array(rows))


def _to_arrow(name: str, values: NDArray[Any]) -> Any:
    """A result column as Arrow, its unknown values null, without a copy of the values."""
    import pyarrow as pa

    if name == "reasons":
        encoded = pa.array(values).dictionary_encode()
        lists = [[reason.value for reason in reasons_of(bits)] for bits in encoded.dictionary.to_pylist()]
        return pa.array(lists, pa.list_(pa.string())).take(encoded.indices)
    known = ~np.isnan(values) if values.dtype.kind == "f" else values != -1
    kind = pa.from_numpy_dtype(values.dtype)
    if known.all():
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    bitmap = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def prepare(
    jobs: Any,
    clusters: Any,
    *,
    pairs: Any = None,
    columns: Sequence[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    select: str = "all",
    top: int = 1,
    **settings: Any,
) -> Fleet:
    """Reads and checks a fleet; the arguments are those of `plan_fleet`."""
    sides = _read("job", jobs), _read("cluster", clusters)
    shared = msgspec.structs.asdict(Settings(**settings))
    # Refused here, once, rather than in every row.
    _core.plan_fleet((0, []), (0, []), shared, None, [])
    _refuse_doubles(*sides)
    jobs_table, clusters_table = (with_defaults(table, shared) for table in sides)
    every = ("job", *sides[0].carried, "cluster", *sides[1].carried, *RESULTS)
    for name in columns or ():
        if name not in every:
            raise InputError(f"there is no such column; there are: {', '.join(every)}", field=name)
    rows = None if pairs is None else _pair_rows(pairs, *sides)
    workloads = None if profile is None else workloads_of(profile)
    fleet = Fleet(
        jobs_table, clusters_table, shared, rows, tuple(columns) if columns is not None else every, workloads
    )
    return fleet if select == "all" else replace(fleet, pairs=_chosen(fleet, select, top))


def _chosen(fleet: Fleet, select: str, top: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    if select not in ("fastest", "cheapest", "goodput"):
        raise InputError(f"{select!r} is not legal; legal: all, fastest, cheapest, goodput", field="select")
    if type(top) is not int or top < 1:
        raise InputError(f"{top!r} is not legal; legal: a whole number from 1", field="top")
    if fleet.workloads is None:
        raise InputError("a choice by time or cost needs a profile", field="profile")
    return _core.choose_rows(*fleet._sides, fleet.settings, fleet.pairs, fleet.workloads, select, top)


def _refuse_doubles(jobs: Table, clusters: Table) -> None:
    """No column of the result may have two meanings, and no setting two columns."""
    taken = {**dict.fromkeys((*RESULTS, "job", "cluster"), "is a column of the result")}
    for table in (jobs, clusters):
        settings = [name for name, _ in table.known if name in SETTINGS_FIELDS]
        for name in (*table.carried, *settings):
            if name in taken:
                raise InputError(f"the column of the {table.kind}s {taken[name]}: rename it", field=name)
        taken.update(dict.fromkeys((*table.carried, *settings), "stands in the jobs too"))


def _read(kind: str, source: Any) -> Table:
    if isinstance(source, (str, os.PathLike)):
        from isobatch.tables import read_table

        return table_of(kind, read_table(source, kind), file=os.fspath(source))
    return table_of(kind, source)


def _pair_rows(pairs: Any, jobs: Table, clusters: Table) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    file = None
    if isinstance(pairs, (str, os.PathLike)):
        from isobatch.tables import read_table

        file, pairs = os.fspath(pairs), read_table(pairs, "pairs")
    if hasattr(pairs, "__arrow_c_stream__"):
        import pyarrow as pa

        named = pa.table(pairs)
        pairs = {name: named[name].to_pylist() for name in named.column_names}
    rows = []
    for table in (jobs, clusters):
        if table.kind not in pairs:
            raise InputError("the column is missing", file=file, field=table.kind)
        ids = table.ids.to_pylist() if table.arrow else table.ids.tolist()
        number = {name: row for row, name in enumerate(ids)}
        wanted = pairs[table.kind]
        wanted = wanted.tolist() if isinstance(wanted, np.ndarray) else wanted
        try:
            rows.append(np.fromiter((number[name] for name in wanted), np.uint32, len(wanted)))
        except KeyError:
            row = next(row for row, name in enumerate(wanted, 1) if name not in number)
            raise InputError(
                f"there is no {table.kind} {wanted[row - 1]!r}", file=file, row=row, field=table.kind
            ) from None
    if len(rows[0]) != len(rows[1]):
        raise InputError(f"{len(rows[0])} jobs for {len(rows[1])} clusters", file=file, field="pairs")
    return rows[0], rows[1]


def plan_fleet(
    jobs: Any,
    clusters: Any,
    *,
    pairs: Any = None,
    columns: Sequence[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    select: str = "all",
    top: int = 1,
    **settings: Any,
) -> Any:
    """Plans every job on every cluster, or the named pairs, on all cores (RAYON_NUM_THREADS sets another number of threads),
    without holding Python's lock.

    Args:
        jobs: a table whose columns are Recipe's fields, and `job`, an id; missing optional columns and null cells take
            Recipe's defaults, unknown columns are carried along. A mapping of NumPy arrays, any object with
            `__arrow_c_stream__` (pandas, polars, pyarrow, DuckDB), a path (CSV, Parquet, JSON lines, a folder or a glob of
            one kind), or a sequence of Recipe.
        clusters: the same with Cluster's fields, and `cluster`; or a sequence of Cluster or GPU counts.
        pairs: a table with the columns `job` and `cluster`, where not all are to meet.
        columns: the columns of the result to compute, in this order; None: all.
        profile: as in `plan`; of several, each row takes the one for its cluster's GPU type.
        select: "all" rows, or of each job the `top` rows that are "fastest", "cheapest" or reach the loss soonest
            ("goodput"), best first, ties in the order of the rows; a job none of whose rows can be compared keeps its first.
        top: how many.
        settings: the keywords of `plan`; a column of the same name in either table wins.

    Returns:
        A `pyarrow.Table`, its unknown values null; where both tables are mappings of arrays or sequences, a dict of NumPy
        arrays, unknown −1 or NaN and `reasons` a bit set (`reasons_of` reads it). Rows come in the order of the pairs, or
        job by job. A row that cannot be planned has status "infeasible" and its reasons; it stops no other.

    Raises:
        InputError: a table cannot be read, a column is missing or of an impossible type, an id stands twice, a setting is
            not legal.

    >>> jobs = {"effective_batch": np.array([256, 250]), "lr": np.array([0.1, 0.1])}
    >>> plan_fleet(jobs, [8, 7], columns=["status", "micro_batch"])
    {'status': array(['ok', 'infeasible', 'infeasible', 'infeasible'], dtype='<U10'), 'micro_batch': array([32, -1, -1, -1], dtype=int32)}
    """
    return prepare(
        jobs, clusters, pairs=pairs, columns=columns, profile=profile, select=select, top=top, **settings
    ).plan()
