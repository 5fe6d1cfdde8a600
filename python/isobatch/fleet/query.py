"""What is asked of many jobs, and the fleet that comes of it, ready to be planned whole or block by block."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.errors import InputError
from isobatch.fleet.columns import CLUSTER_FIELDS, JOB_FIELDS, SETTINGS_FIELDS, Table, table_of, with_defaults
from isobatch.forecast.profile import Profile, as_profiles, workloads_of
from isobatch.planning.settings import settings_of
from isobatch.reason import reasons_of

RESULTS = dict(_core.results())
"""Result columns of the core, with their NumPy types."""

STATUS = np.array(["ok", "caution", "infeasible"])

SELECT = ("all", "fastest", "cheapest", "goodput")

_Columns = tuple[int, list[tuple[str, Any]]]
_Pairs = tuple[NDArray[np.uint32], NDArray[np.uint32]]


@dataclass(frozen=True)
class Query:
    """What is asked of every job: on which clusters, how, which columns of the result, and which rows of it.

    `clusters` is None where each row of the jobs has its own cluster's columns.
    """

    clusters: Table | None
    settings: dict[str, Any]
    columns: tuple[str, ...] | None = None
    profiles: tuple[Profile, ...] = ()
    select: str = "all"
    top: int = 1

    @property
    def rows_per_job(self) -> int:
        """Rows that each job is planned in."""
        return 1 if self.clusters is None else self.clusters.rows

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns of the jobs that the planner takes; others are carried along as they are."""
        own = CLUSTER_FIELDS if self.clusters is None else ()
        return (*JOB_FIELDS, *SETTINGS_FIELDS, *own)

    @property
    def metadata(self) -> dict[str, str]:
        """What a file of plans says of how they were made."""
        return {
            "isobatch.version": _core.__version__,
            "isobatch.settings": msgspec.json.encode(self.settings).decode(),
        }

    def fleet(
        self,
        source: Any,
        *,
        pairs: Any = None,
        file: str | None = None,
        before: int = 0,
        number: int = 0,
        numbered: bool = True,
    ) -> Fleet:
        """The jobs in a table, ready to be planned; `before` rows come before it in its file. Without ids they are numbered
        from `number`, or have none.

        Raises:
            InputError: the table cannot be read or used; the message names the file, row and field.
        """
        jobs = table_of(
            "job", source, file=file, before=before, number=number, unique=self.clusters is not None
        )
        rows: _Pairs | None = None
        if self.clusters is None:
            if pairs is not None:
                raise InputError("name clusters: without any, each row has its own", field="pairs")
            jobs, clusters = _own_clusters(jobs)
            each = np.arange(jobs.rows, dtype=np.uint32)
            rows = each, each
        else:
            clusters = self.clusters
            if pairs is not None:
                rows = _pair_rows(pairs, jobs, clusters)
        _refuse_doubles(jobs, clusters)
        crossed = self.clusters is not None
        every = (
            *_names(jobs, numbered=crossed and numbered),
            *_names(clusters, numbered=crossed),
            *RESULTS,
        )
        for name in self.columns or ():
            if name not in every:
                raise InputError(
                    f"there is no such column; there are: {', '.join(every)}", file=file, field=name
                )
        jobs, clusters = (with_defaults(table, self.settings) for table in (jobs, clusters))
        fleet = Fleet(
            jobs,
            clusters,
            self.settings,
            rows,
            every if self.columns is None else self.columns,
            self._workloads,
        )
        if self.select == "all":
            return fleet
        assert self._workloads is not None  # `query` has seen to it
        chosen = _core.choose_rows(
            *fleet._sides, fleet.settings, rows, self._workloads, self.select, self.top
        )
        return replace(fleet, pairs=chosen)

    @cached_property
    def _workloads(self) -> _core.Workloads | None:
        return workloads_of(self.profiles)


def query(
    clusters: Any = None,
    *,
    columns: Sequence[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    select: str = "all",
    top: int = 1,
    **settings: Any,
) -> Query:
    """Reads and checks all that is asked; the arguments are those of `plan_fleet`."""
    shared = settings_of(settings)._asdict()
    # Refused here, once, rather than in every row.
    _core.plan_fleet((0, []), (0, []), shared, None, [])
    if select not in SELECT:
        raise InputError(f"{select!r} is not legal; legal: {', '.join(SELECT)}", field="select")
    if type(top) is not int or top < 1:
        raise InputError(f"{top!r} is not legal; legal: a whole number from 1", field="top")
    if top != 1 and select == "all":
        raise InputError("nothing is chosen of all rows: say by select what to choose by", field="top")
    doubled = [name for name in columns or () if list(columns or ()).count(name) > 1]
    if doubled:
        raise InputError(f"{doubled[0]!r} stands twice", field="columns")
    profiles = as_profiles(profile)
    if select != "all" and not profiles:
        raise InputError("a choice by time or cost needs a profile", field="profile")
    if select != "all" and clusters is None:
        raise InputError(
            "where each row has its own cluster, there is nothing to choose from", field="select"
        )
    table = None if clusters is None else _read("cluster", clusters)
    made = Query(table, shared, None if columns is None else tuple(columns), profiles, select, top)
    _ = made._workloads  # two profiles for one GPU type are refused here
    return made


def _own_clusters(rows: Table) -> tuple[Table, Table]:
    """Jobs and clusters of a table that holds both in each row."""
    own = {name: rows.carried[name] for name in (*CLUSTER_FIELDS, "cluster") if name in rows.carried}
    if not {"nodes", "gpus_per_node"} & own.keys():
        raise InputError(
            "without clusters each row needs its own: a column nodes or gpus_per_node is missing",
            file=rows.file,
        )
    source: Any = own
    if rows.arrow:
        import pyarrow as pa

        source = pa.table(own)
    clusters = table_of("cluster", source, file=rows.file, before=rows.before, unique=False)
    carried = {name: column for name, column in rows.carried.items() if name not in own}
    return replace(rows, carried=carried), clusters


def _names(table: Table, *, numbered: bool) -> tuple[str, ...]:
    """The table's columns in the result."""
    return (*((table.kind,) if numbered or table.ids is not None else ()), *table.carried)


@dataclass(frozen=True)
class Fleet:
    """Jobs and clusters that were read and checked, and are ready to be planned, whole or block by block."""

    jobs: Table
    clusters: Table
    settings: dict[str, Any]
    pairs: _Pairs | None
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

    def fault(self, row: int) -> str | None:
        """What is illegal in a row of the result, in words."""
        found = _core.fleet_fault(*self._sides, self.settings, self.pairs, row)
        if found is None:
            return None
        if self.pairs is None:
            job, cluster = divmod(row, self.clusters.rows)
        else:
            job, cluster = (int(side[row]) for side in self.pairs)
        field, legal = found
        return f"{self.jobs.where(job)}, {self.clusters.where(cluster)}: {field}, legal: {legal}"

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
                column = table.numbered if name == table.kind else table.carried[name]
                columns[name] = self._taken(column, rows)
        if not self.arrow:
            return columns
        import pyarrow as pa

        return pa.table(columns)

    def _rows(self) -> _Pairs:
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
        from isobatch.files.read import read_table

        return table_of(kind, read_table(source), file=os.fspath(source))
    return table_of(kind, source)


def _pair_rows(pairs: Any, jobs: Table, clusters: Table) -> _Pairs:
    file = None
    if isinstance(pairs, (str, os.PathLike)):
        from isobatch.files.read import read_table

        file, pairs = os.fspath(pairs), read_table(pairs)
    if hasattr(pairs, "__arrow_c_stream__"):
        import pyarrow as pa

        named = pa.table(pairs)
        pairs = {name: named[name].to_pylist() for name in named.column_names}
    rows = []
    for table in (jobs, clusters):
        if table.kind not in pairs:
            raise InputError("the column is missing", file=file, field=table.kind)
        ids = table.numbered.to_pylist() if table.arrow else table.numbered.tolist()
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
