"""A fleet's table of plans from any file: its columns to compute with, and its first rows for the page."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError, must_be
from isobatch.files.limits import refuse_duplicates
from isobatch.fleet.columns import JOB_FIELDS, naming_column
from isobatch.fleet.results import RESULTS, STATUS, Provenance, of_metadata, result_in_arrow
from isobatch.reason import Reason, bits_of, reason_names
from isobatch.report.levels import LEVELS, levels_of, warnings_of
from isobatch.report.page import HtmlTable
from isobatch.system import LazyModule
from isobatch.words import count, counted, figure, printable, real

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = LazyModule("pyarrow"), LazyModule("pyarrow.compute")

INFEASIBLE = STATUS.tolist().index("infeasible")


class Plans(NamedTuple):
    """Columns of equal length: numbers (NaN if unknown), texts as indices of their values, status as a code,
    reasons as bit sets; `provenance` is the file's own account of how it was planned, `tuned` are the reasons
    of the tuned run."""

    rows: int
    texts: dict[str, tuple[list[str | None], NDArray[np.int64]]]
    numbers: dict[str, NDArray[np.float64]]
    status: NDArray[np.int64]
    reasons: NDArray[np.uint64]
    provenance: Provenance
    tuned: int = 0

    @property
    def warnings(self) -> NDArray[np.uint64]:
        """The cautions of each row about its move to other GPUs, as bit sets."""
        return warnings_of(self.reasons, self.number("batch_change"), self.tuned)

    @property
    def levels(self) -> NDArray[np.int64]:
        """The level of each row: its place in LEVELS."""
        return levels_of(self.status, self.warnings)

    @property
    def one_each(self) -> bool:
        """Tells whether every job has one row only."""
        return "job" in self.texts and int(np.bincount(self.texts["job"][1]).max(initial=0)) < 2

    @property
    def compares(self) -> bool:
        """Tells whether a job's clusters can be compared: all its rows are there, and not only the chosen."""
        return self.provenance.select in (None, "all") and not self.one_each

    def only(self, rows: NDArray[np.intp]) -> "Plans":
        """Returns the table of some rows."""
        return self._replace(
            rows=len(rows),
            texts={name: (values, at[rows]) for name, (values, at) in self.texts.items()},
            numbers={name: values[rows] for name, values in self.numbers.items()},
            status=self.status[rows],
            reasons=self.reasons[rows],
        )

    def gpu_types(self) -> tuple[list[str], NDArray[np.int64]]:
        """Returns the GPU types, "" where the file does not say, and the place of each row among them."""
        clusters, at = self.text("cluster")
        each = [self.provenance.gpu_types.get(name or "", "") for name in clusters]
        types = list(dict.fromkeys(each))
        places: NDArray[np.int64] = np.array([types.index(kind) for kind in each], np.int64)[at]
        return types, places

    def number(self, name: str) -> NDArray[np.float64]:
        """Returns a column, all unknown where the table has none."""
        values = self.numbers.get(name)
        return np.full(self.rows, np.nan) if values is None else values

    def spent(self, name: str) -> NDArray[np.float64]:
        """Returns hours, GPU-hours or cost to compare; NaN in rows without GPU count, hours or GPU-hours."""
        known = (self.gpus >= 1) & (self.number("hours") >= 0) & (self.number("gpu_hours") >= 0)
        return np.where(known, self.number(name), np.nan)

    def text(self, name: str) -> tuple[list[str | None], NDArray[np.int64]]:
        """Returns a column's values, and each row's index among them; one value if the table lacks it."""
        return self.texts.get(name, ([""], np.zeros(self.rows, np.int64)))

    @property
    def deadline(self) -> float | None:
        """The deadline of the settings, where it is a legal one."""
        hours = self.provenance.settings.get("deadline_hours")
        if not isinstance(hours, (int, float)) or isinstance(hours, bool) or not 0 < hours < 1e300:
            return None
        return float(hours)

    @property
    def gpus(self) -> NDArray[np.float64]:
        """The GPU count of each row: one job's own column, or the plan's."""
        return self.numbers["gpus"] if "gpus" in self.numbers else self.number("world_size")

    def has(self, reason: Reason) -> NDArray[np.bool_]:
        """Marks the rows with a reason."""
        return (self.reasons >> np.uint64(reason.bit) & np.uint64(1)).astype(bool)


def plans_of(table: Any, file: str | None = None) -> Plans:
    """Reads the columns of a fleet's result or of its file."""
    if isinstance(table, dict):
        _refuse_others([*table], file)
        try:
            table = pa.table({name: _array(name, values) for name, values in table.items()})
        except (pa.ArrowException, TypeError, ValueError) as error:
            why = f"table must have columns of values of one length: {error}"
            raise InputError(why, field="table") from None
    whole = pa.table(table)
    _refuse_others(whole.column_names, file)
    try:
        refuse_duplicates(whole.column_names)
    except ValueError as error:
        raise InputError(str(error), file=file) from None
    texts, numbers = {}, {}
    for name in whole.column_names:
        if name in ("status", "reasons"):
            continue
        column = whole[name].combine_chunks()
        kind = column.type
        is_result = name in RESULTS or name in ("gpus", "samples_over_least", "steps_over_least")
        if is_result or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            values = _numbers(column, name, file)
            if not np.isinf(values).any():
                numbers[name] = values
                continue
            if is_result:
                row = int(np.argmax(np.isinf(values)))
                raise must_be("a finite number", float(values[row]), field=name, file=file, row=row + 1)
        # An infinite number in a column of the jobs' own is only shown.
        texts[name] = _texts(column, name, file)
    texts |= {name: _named(numbers.pop(name)) for name in ("job", "cluster") if name in numbers}
    return Plans(
        whole.num_rows,
        texts,
        numbers,
        _status(whole["status"].combine_chunks(), file),
        _reasons(whole["reasons"].combine_chunks(), file),
        of_metadata(whole.schema.metadata),
    )


def _refuse_others(names: list[str], file: str | None) -> None:
    if {"nodes", "why", "goodput", "speedup"} <= {*names}:
        todo = "isobatch allocate --json > division.json, or a log of them (.jsonl), has what a page needs"
        raise InputError(f"holds the rows of isobatch allocate, not a fleet's plans: {todo}", file=file)
    needed = [name for name in ("status", "reasons") if name not in names]
    if not needed:
        return
    # A table of jobs has some of a plan's columns, too.
    if not set(names) & (RESULTS.keys() - set(JOB_FIELDS)):
        raise InputError(f"has no column {needed[0]!r}: it does not hold a fleet's plans", file=file)
    lacks = f"has no column {' and no column '.join(map(repr, needed))}"
    todo = f"plan again with {' and '.join(needed)} among --columns (columns=), or without it"
    raise InputError(f"{lacks}, which a page needs: {todo}", file=file)


def _array(name: str, values: Any) -> Any:
    """A column of a dict as Arrow has it."""
    array = np.asarray(values)
    return result_in_arrow(name, array) if name in RESULTS and array.dtype.kind in "uif" else pa.array(values)


def _numbers(column: Any, name: str, file: str | None) -> NDArray[np.float64]:
    try:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.if_else(pc.equal(column, ""), None, column)
        numbers = column.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise InputError(f"column {name!r} must have numbers: {str(error)[:120]}", file=file) from None
    values: NDArray[np.float64] = np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)
    return values


def _texts(column: Any, name: str, file: str | None) -> tuple[list[str | None], NDArray[np.int64]]:
    with naming_column(name, file):
        return _coded(column)


def _coded(column: Any) -> tuple[list[str | None], NDArray[np.int64]]:
    if pa.types.is_null(column.type):
        return [None], np.zeros(len(column), np.int64)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        every = [None if value is None else str(value) for value in column.to_pylist()]
        column = pa.array(every, pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode(null_encoding="encode")
    values = [None if value is None else str(value) for value in column.dictionary.to_pylist()]
    if column.indices.null_count:
        values.append(None)
    at = column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return values, at.astype(np.int64)


def _named(numbers: NDArray[np.float64]) -> tuple[list[str | None], NDArray[np.int64]]:
    """Writes numeric ids as texts."""
    values, at = np.unique(numbers, return_inverse=True)
    return [None if value != value else f"{value:.15g}" for value in values.tolist()], at.astype(np.int64)


def _status(column: Any, file: str | None) -> NDArray[np.int64]:
    values, at = _texts(column, "status", file)
    known = STATUS.tolist()
    for value in values:
        if value not in known:
            raise must_be("ok, caution or infeasible", value, field="status", file=file)
    codes: NDArray[np.int64] = np.array([known.index(value) for value in values], np.int64)
    return codes[at]


def _reasons(column: Any, file: str | None) -> NDArray[np.uint64]:
    """The bit set of each row: of lists in Arrow, of texts in CSV."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        bits = np.zeros(len(column), np.uint64)
        rows = np.repeat(np.arange(len(column)), np.diff(column.offsets.to_numpy()))
        names = column.flatten()
        if len(names):
            values, at = _texts(names, "reasons", file)
            np.bitwise_or.at(bits, rows, _bit_sets(([value] for value in values), file)[at])
        return bits
    values, at = _texts(column, "reasons", file)
    return _bit_sets((reason_names(text or "") for text in values), file)[at]


def _bit_sets(lists: Iterable[list[Any]], file: str | None) -> NDArray[np.uint64]:
    try:
        return np.array([bits_of(names) for names in lists], np.uint64)
    except InputError as error:
        raise error.at(file=file) from None


# ---- the rows of the page ----

MAX_ROWS = 1_000
"""Rows of a page: it stays small enough to be sent, and a browser sorts them at once."""
_MAX_PRINTED_ROWS = 50
"""Rows on paper: as in style.css."""
_MAX_CELL_CHARACTERS = 300
_EXACT = ("lr", "lr_scale", "beta1", "beta2", "eps", "weight_decay", "momentum", "ema_decay")
_USUAL = (
    "job", "cluster", "gpus", "status", "deadline", "budget", "world_size", "micro_batch", "accumulation",
    "effective_batch",
    "batch_change",
    "lr", "total_steps", "warmup_steps", "hours", "hours_error", "gpu_hours", "cost", "memory_gib", "reasons",
    "nearest_world_size", "nearest_batch",
)  # fmt: skip
"""Columns in the order in which people look at them; others come behind."""


def rows_of(
    plans: Plans,
    noun: str,
    file: str | None = None,
    columns: Sequence[str] | None = None,
    headings: Mapping[str, str] | None = None,
) -> HtmlTable:
    """Tables the first rows, in the table's order; below it, how many are not shown, and where all are.

    Columns without anything known are left out; `headings` are of columns whose name is none.
    """
    names = [name for name in _ordered(plans) if columns is None or name in columns]
    cells = {name: _cells(plans, name) for name in names}
    rows = list(zip(*(texts for _, texts in cells.values()), strict=True))
    caption, notes = f"{counted(plans.rows, noun)}: sort by a heading, find a word", []
    if plans.rows > MAX_ROWS:
        every = "the table that this page was made of" if file is None else PurePath(file).name
        caption = f"The first {count(MAX_ROWS)} of {caption}"
        notes.append(f"{count(plans.rows - MAX_ROWS)} more are not shown: all are in {every}.")
    if len(rows) > _MAX_PRINTED_ROWS:
        notes.append(f"On paper: the first {_MAX_PRINTED_ROWS}.")
    kinds = {(headings or {}).get(name, name): kind for name, (kind, _) in cells.items()}
    return HtmlTable(caption, kinds, rows, notes, sortable=True)


def _ordered(plans: Plans) -> list[str]:
    """Orders the columns with anything known in them."""
    known = {"status", "reasons", *plans.texts}
    known |= {name for name, values in plans.numbers.items() if not np.isnan(values).all()}
    usual = [name for name in _USUAL if name in known]
    return [*usual, *(name for name in (*plans.texts, *plans.numbers) if name in known and name not in usual)]


def _cells(plans: Plans, name: str) -> tuple[str, list[str]]:
    """Returns a column's kind, and its first rows as text."""
    if name == "status":
        return "status", [LEVELS[level] for level in plans.levels[:MAX_ROWS].tolist()]
    if name == "reasons":
        return "text", ["; ".join(Reason.of(bits)) for bits in plans.reasons[:MAX_ROWS].tolist()]
    if name in plans.texts:
        texts, at = plans.texts[name]
        cells = (texts[place] or "" for place in at[:MAX_ROWS].tolist())
        return "text", [printable(cell, _MAX_CELL_CHARACTERS) for cell in cells]
    numbers = plans.numbers[name]
    is_whole = "int" in RESULTS.get(name, "") or name == "gpus" or _are_whole(numbers)
    write = count if is_whole else real if name in _EXACT else figure
    return "number", ["" if value != value else write(value) for value in numbers[:MAX_ROWS].tolist()]


def _are_whole(numbers: NDArray[np.float64]) -> bool:
    known = numbers[~np.isnan(numbers)]
    return bool((known == np.rint(known)).all()) and not (known.size and np.abs(known).max() > 2**53)
