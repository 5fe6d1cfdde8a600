"""The rows of a fleet: jobs and clusters that meet, and their plans, whole or block by block."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.errors import InputError, missing, must_be
from isobatch.files.limits import refuse_columns
from isobatch.fleet.columns import Data
from isobatch.fleet.results import ECHOED, INFEASIBLE, RESULTS, STATUS, echoed_column, result_in_arrow
from isobatch.fleet.table import InputTable, table_at
from isobatch.reason import Reason, reasons_in
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, few, figure, nearest, shown

Pairs = tuple[NDArray[np.uint32], NDArray[np.uint32]]
"""Rows of the jobs and of the clusters that meet."""

_COMMA = re.compile(r"got the text '[\d.]*,\d+'")
_CAUTION, _INFEASIBLE = (STATUS.tolist().index(name) for name in ("caution", "infeasible"))

_NEEDED = frozenset(field.name for field in msgspec.structs.fields(Recipe) if field.required)

_Crossing = tuple[int, list[tuple[str, Data]]]
"""Rows and columns of one side, as the core takes them."""


def memory() -> int:
    """Returns the bytes of memory of this machine; without an answer, more than any has."""
    if sys.platform != "win32":
        with suppress(ValueError, OSError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 1 << 62


def _without_plans(arrays: dict[str, NDArray[Any]], rows: NDArray[np.bool_]) -> None:
    """Takes their plans from the rows of jobs without an id. The core knows no ids: it has planned them."""
    for name, values in arrays.items():
        if name == "status":
            values[rows] = _INFEASIBLE
        elif name == "reasons":
            values[rows] = values[rows] & INFEASIBLE | np.uint64(1 << Reason.INVALID_ID.bit)
        elif name != "world_size":
            values[rows] = np.nan if values.dtype.kind == "f" else -1


@dataclass(frozen=True)
class Fleet:
    """Jobs and clusters, checked and ready to be planned, whole or block by block."""

    jobs: InputTable
    clusters: InputTable
    settings: dict[str, Any]
    pairs: Pairs | None
    columns: tuple[str, ...]
    workloads: _core.Workloads | None = None
    not_compared: NDArray[np.bool_] | None = None
    """Marks the pairs of jobs whose rows could not all be compared; None: there are none."""
    left_out: int = 0
    """Rows that the choice left out, as they could not be compared."""
    sheets: bool = False
    """Tells whether a profile's GPU has its memory in a data sheet."""

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.jobs.rows * self.clusters.rows if self.pairs is None else len(self.pairs[0])

    @property
    def arrow(self) -> bool:
        """Whether the result is a `pyarrow.Table`."""
        return self.jobs.arrow or self.clusters.arrow

    @property
    def _tables(self) -> tuple[_Crossing, _Crossing]:
        return (self.jobs.rows, self.jobs.fields), (self.clusters.rows, self.clusters.fields)

    def chosen(self, workloads: _core.Workloads, select: str, top: int) -> "Fleet":
        """Returns the best rows of each job, best first."""
        jobs, clusters, places, left_out = _core.choose_rows(
            *self._tables, self.settings, self.pairs, workloads, select, top
        )
        marks = np.zeros(len(jobs), dtype=bool)
        marks[places] = True
        not_compared = marks if len(places) else None
        return replace(self, pairs=(jobs, clusters), not_compared=not_compared, left_out=left_out)

    def example(self, row: int, reason: Reason) -> str | None:
        """Names the place of a row with a reason, and its illegal values; None: nothing to correct."""
        job, cluster = self._pair(row)
        where = f"{self.jobs.where(job)}, {self.clusters.where(cluster)}"
        if reason is Reason.INVALID_ID:
            return f"{self.jobs.where(job)}: {self.jobs.id_fault(job)}"
        if reason.startswith("invalid_"):
            texts = self.row_faults(row)
            return f"{where}: {'; '.join(texts)}{decimal_hint(texts)}" if texts else None
        return where if reason.startswith("needs_") or reason is Reason.OTHER_HARDWARE else None

    def _pair(self, row: int) -> tuple[int, int]:
        """Returns the rows of the job and of the cluster of a row of the result."""
        if self.pairs is None:
            return divmod(row, self.clusters.rows)
        return int(self.pairs[0][row]), int(self.pairs[1][row])

    def row_faults(self, row: int) -> list[str]:
        """Names the illegal values of a row of the result: the field, the legal values and the value."""
        job, cluster = self._pair(row)
        sides = [self.jobs.row(job).fields, self.clusters.row(cluster).fields]
        faults: dict[str, str] = {}
        # The core names one: the others are those of the row without it. A field that it needs comes again.
        while fault := _core.fleet_fault((1, sides[0]), (1, sides[1]), self.settings, None, 0):
            if fault[0] in faults:
                break
            faults[fault[0]] = self._fault_text(*fault, job, cluster)
            sides = [[column for column in side if column[0] != fault[0]] for side in sides]
        return list(faults.values())

    def _fault_text(self, field: str, legal: str, job: int, cluster: int) -> str:
        cells = [self.jobs.cell(field, job), self.clusters.cell(field, cluster)]
        values = [cell for cell in cells if cell is not None]
        # Where both sides have it, or neither does, the core alone knows which value it took.
        if len(values) == 1:
            return str(must_be(legal, values[0], field=field))
        if not values and field in _NEEDED:
            return str(missing(field, f"it must be {legal}"))
        return f"{field} must be {legal}"

    def blocks(self, rows: int) -> "Iterator[Fleet]":
        """Divides it into fleets of about this many rows, at least one, with the same result together."""
        if self.rows == 0:
            yield self
            return
        if self.pairs is not None:
            jobs, clusters = self.pairs
            for start in range(0, len(jobs), rows):
                cut = slice(start, start + rows)
                marks = None if self.not_compared is None else self.not_compared[cut]
                left_out = 0 if start else self.left_out
                yield replace(self, pairs=(jobs[cut], clusters[cut]), not_compared=marks, left_out=left_out)
            return
        step = max(1, rows // max(1, self.clusters.rows))
        for start in range(0, self.jobs.rows, step):
            yield replace(self, jobs=self.jobs.slice(start, start + step))

    def plan(self) -> Any:
        """Returns a `pyarrow.Table`, or a dict of arrays where dicts came in."""
        return self._assembled(self._computed(name for name in self.columns if name in RESULTS))

    def plan_with_status(self) -> tuple[Any, NDArray[np.uint8], NDArray[np.uint64], int]:
        """Returns the plan, and the status codes and reason bits of its rows, even if they are no columns.

        The last value counts the rows whose micro-batch nothing caps.
        """
        timed = set() if self.workloads is None else {"memory_gib"}
        arrays = self._computed({"status", "reasons", *timed, *self.columns} & RESULTS.keys())
        return self._assembled(arrays), arrays["status"], arrays["reasons"], self.uncapped(arrays)

    def uncapped(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Counts the planned rows without a cap on the micro-batch by job, cluster, setting or memory."""
        if self.settings.get("max_micro_batch") is not None:
            return 0

        def lacks(table: InputTable, name: str) -> NDArray[np.bool_]:
            return np.isnan(table.reals(name))

        job, cluster = (lacks(table, "max_micro_batch") for table in (self.jobs, self.clusters))
        # The tuned micro-batch is also known by the GPUs and the accumulation.
        job &= lacks(self.jobs, "micro_batch") & (lacks(self.jobs, "gpus") | lacks(self.jobs, "accumulation"))
        if not job.any() or not cluster.any():
            return 0
        rows = arrays["status"] != _INFEASIBLE
        if "memory_gib" in arrays:
            by_sheet = np.full(self.clusters.rows, not self.sheets)
            unlimited = lacks(self.clusters, "memory_gib") & by_sheet
            rows &= np.isnan(arrays["memory_gib"]) | self._of(unlimited, 1)
        return int(np.count_nonzero(rows & self._of(job, 0) & self._of(cluster, 1)))

    def _of(self, values: NDArray[np.bool_], side: int) -> NDArray[np.bool_]:
        """Spreads a mask of the jobs (side 0) or the clusters (1) over the rows of the result."""
        if self.pairs is not None:
            return values[self.pairs[side]]
        crossed = (self.jobs.rows, self.clusters.rows)
        shaped = values[:, None] if side == 0 else values[None, :]
        return np.broadcast_to(shaped, crossed).reshape(-1)

    def _computed(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        results = list(names)
        self._refuse_too_large(results)
        planned = _core.plan_fleet(*self._tables, self.settings, self.pairs, results, self.workloads)
        arrays = dict(zip(results, planned, strict=True))
        if self.not_compared is not None:
            if "reasons" in arrays:
                arrays["reasons"][self.not_compared] |= np.uint64(1 << Reason.NOT_COMPARED.bit)
            if "status" in arrays:  # they can all be planned: what was ok is so with a caution
                arrays["status"][self.not_compared] = _CAUTION
        if self.jobs.missing_ids is not None and self.jobs.missing_ids.any():
            _without_plans(arrays, self.jobs.missing_ids[self._rows()[0]])
        return arrays

    def _refuse_too_large(self, results: list[str]) -> None:
        """Refuses a result larger than memory: it would end the process, or the machine."""
        needed = self.rows * sum(np.dtype(RESULTS[name]).itemsize for name in results)
        if needed > (available := memory()):
            raise InputError(
                f"the result has {counted(self.rows, 'row')} of {counted(len(results), 'column')}, "
                f"{figure(needed / 2**30)} GiB, and this machine has {figure(available / 2**30)} GiB: ask "
                "for fewer columns, choose the best rows by select and top, or plan into files by plan_files"
            )

    def _assembled(self, arrays: dict[str, NDArray[Any]]) -> Any:
        # Not where only results are asked for: naming the rows costs a tenth of planning them.
        jobs, clusters = self._rows() if set(self.columns) - RESULTS.keys() else (None, None)
        columns: dict[str, Any] = {}
        for name in self.columns:
            if name == "status":
                columns[name] = self._take(STATUS, arrays[name])
            elif name in RESULTS:
                columns[name] = result_in_arrow(name, arrays[name]) if self.arrow else arrays[name]
            elif name in ECHOED and not {name} & (self.jobs.extra.keys() | self.clusters.extra.keys()):
                columns[name] = self._take(echoed_column(self.jobs, name, arrow=self.arrow), jobs)
            else:
                is_job = name == "job" or name in self.jobs.extra
                table, rows = (self.jobs, jobs) if is_job else (self.clusters, clusters)
                column = table.row_ids if name == table.kind else table.extra[name]
                columns[name] = self._take(column, rows)
        if not self.arrow:
            return columns
        import pyarrow as pa

        return pa.table(columns)

    def _rows(self) -> Pairs:
        """The rows of the jobs and of the clusters, for each row of the result."""
        if self.pairs is not None:
            return self.pairs
        jobs, clusters = (np.arange(table.rows, dtype=np.uint32) for table in (self.jobs, self.clusters))
        return np.repeat(jobs, self.clusters.rows), np.tile(clusters, self.jobs.rows)

    def _take(self, column: Any, rows: Any) -> Any:
        if not self.arrow:
            # No row is out of range: not to look saves a quarter.
            return np.take(column, rows, mode="clip")
        import pyarrow as pa

        return (pa.array(column) if isinstance(column, np.ndarray) else column).take(pa.array(rows))


def decimal_hint(faults: Iterable[str]) -> str:
    """Returns how to read decimal commas, if one of these faults is such a number; else nothing."""
    if any(_COMMA.search(fault) for fault in faults):
        return " (decimal=',' reads decimal commas: --decimal ,)"
    return ""


# Jobs and clusters that meet, where not all do


def read_pairs(pairs: Any, jobs: InputTable, clusters: InputTable) -> Pairs:
    """Reads pairs of rows from a table with the ids of a job and a cluster in each row."""
    file, pairs = table_at(pairs)
    if hasattr(pairs, "__arrow_c_stream__"):
        import pyarrow as pa

        named = pa.table(pairs)
        refuse_columns(named.column_names, file)
        pairs = {name: named[name].to_pylist() for name in named.column_names if name in ("job", "cluster")}
    if not isinstance(pairs, Mapping):
        raise must_be("a table with the columns job and cluster", pairs, field="pairs")
    rows = [_rows_of(pairs, table, file) for table in (jobs, clusters)]
    if len(rows[0]) != len(rows[1]):
        why = f"pairs has {len(rows[0]):,} jobs for {len(rows[1]):,} clusters"
        raise InputError(why, file=file, field="pairs")
    return rows[0], rows[1]


def _rows_of(pairs: Mapping[str, Any], table: InputTable, file: str | None) -> NDArray[np.uint32]:
    if table.kind not in pairs:
        raise missing(table.kind, "pairs needs the columns job and cluster", file=file)
    names = pairs[table.kind]
    names = names.tolist() if isinstance(names, np.ndarray) else names
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise must_be("a sequence of ids", names, field=table.kind, file=file)
    ids = table.id_list
    number = {name: row for row, name in enumerate(ids)}
    if file is not None and ids and not isinstance(ids[0], str):
        number |= {str(name): row for name, row in number.items()}  # a CSV file has texts only
    try:
        return np.fromiter((number[name] for name in names), np.uint32, len(names))
    except (KeyError, TypeError):
        # A value that cannot be a key is no id either.
        row, name = next((row, name) for row, name in enumerate(names, 1) if name not in ids)
        why = f"there is no {table.kind} {shown(name)}: {_ids_of(table, ids, name)}"
        raise InputError(why, file=file, row=row, field=table.kind) from None


def _ids_of(table: InputTable, ids: Sequence[Any], name_asked: Any) -> str:
    """Suggests an id."""
    texts = [name for name in ids if isinstance(name, str)]
    if isinstance(name_asked, str) and (close := nearest(name_asked, texts)) is not None:
        return f"did you mean {close!r}?"
    if table.ids is None:
        return f"without a column {table.kind} they are numbered from {ids[0] if ids else 0}"
    return f"there are {few((shown(name) for name in ids), 8) or 'none'}"


# Counts of rows by status and reason

UNCAPPED = (
    "nothing caps the micro-batch, so whether it fits in memory is not known: set max_micro_batch "
    "(--max-micro-batch), or micro_batch of the recipe"
)


class Summary(msgspec.Struct):
    """Counts rows by status and reason, with the first row of each illegal or missing value in words."""

    rows: int = 0
    feasible: int = 0
    left_out: int = 0
    reasons: dict[str, int] = {}
    examples: dict[str, str] = {}
    uncapped: int = 0

    @property
    def infeasible(self) -> int:
        """Rows without a plan."""
        return self.rows - self.feasible

    def add(self, block: Fleet, status: Any, reasons: Any, uncapped: int) -> None:
        """Counts a block: its status codes and reason bits, and its rows without a cap on the micro-batch."""
        present = int(np.bitwise_or.reduce(reasons, initial=0))
        for reason in reasons_in(present):
            hit = (reasons >> np.uint64(reason.bit) & np.uint64(1)).astype(bool)
            self.reasons[reason.value] = self.reasons.get(reason.value, 0) + int(np.count_nonzero(hit))
            if reason.value not in self.examples and (example := block.example(int(hit.argmax()), reason)):
                self.examples[reason.value] = example
        self.rows += len(status)
        self.uncapped += uncapped
        self.left_out += block.left_out
        self.feasible += int(np.count_nonzero(status != _INFEASIBLE))

    def merge(self, summary: "Summary") -> None:
        """Adds the counts of another."""
        self.rows += summary.rows
        self.left_out += summary.left_out
        self.uncapped += summary.uncapped
        self.feasible += summary.feasible
        for name, count in summary.reasons.items():
            self.reasons[name] = self.reasons.get(name, 0) + count
        self.examples = {**summary.examples, **self.examples}

    def lines(self) -> list[str]:
        """The summary as people read it."""
        lines = [f"{counted(self.rows, 'row')}: {self.feasible:,} feasible, {self.infeasible:,} infeasible"]
        for name, count in sorted(self.reasons.items(), key=lambda item: -item[1]):
            reason = Reason(name)
            detail = f"; first in {self.examples[name]}" if name in self.examples else ""
            lines.append(f"  {reason.severity:10} {count:>9,}  {name}: {reason.text}{detail}")
        if self.uncapped:
            lines.append(f"{counted(self.uncapped, 'row')}: {UNCAPPED}")
        if self.left_out:
            rows = counted(self.left_out, "row")
            lines.append(f"{rows} left out of the choice: their time, cost or noise scale is not known")
        return lines
