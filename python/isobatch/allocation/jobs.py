"""Jobs with their limits, and their speed on every count of the pool."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.allocation.nodes import Pool
from isobatch.errors import InputError, must_be, unknown
from isobatch.fleet.columns import cells_of, floats_of, plain_number
from isobatch.fleet.query import query
from isobatch.fleet.results import RESULTS, USUAL
from isobatch.fleet.rows import Fleet, decimal_hint
from isobatch.fleet.table import InputTable, input_table
from isobatch.forecast.data_sheets import memory_gib_of
from isobatch.forecast.profile import Profile, as_profiles, workloads_of
from isobatch.words import nearest, shown

_ABOVE_0 = "a number above 0", lambda x: x > 0
_FROM_0 = "a number from 0", lambda x: x >= 0
_COUNT = "a whole number from 1", lambda x: (x >= 1) & (x == x // 1)

_NUMBERS: dict[str, tuple[float, str, Callable[[Any], Any]]] = {
    "min_gpus": (1, *_COUNT),
    "max_gpus": (math.inf, *_COUNT),
    "weight": (1, "a number above 0, at most 1e12", lambda x: (x > 0) & (x <= 1e12)),
    "done_samples": (0, *_FROM_0),
    "age_seconds": (math.nan, *_FROM_0),
    "restarts": (0, *_FROM_0),
    "restart_seconds": (30, *_FROM_0),
    "deadline_hours": (math.nan, *_ABOVE_0),
}
"""A number's default, and its legal values."""

OWN = (*_NUMBERS, "gpu", "pinned", "profile")
"""Columns of the jobs that only a division reads."""

_OF_CHOICES = ("status", "samples_per_second", "effective_batch", "hours", "reasons")
"""Figures of the plan at each count."""

_MAX_ROWS = 1 << 26

Profiles = Profile | Sequence[Profile]


@dataclass(frozen=True)
class Jobs:
    """Jobs with their limits; `fault` has the error of each unusable row."""

    table: InputTable
    ids: list[str]
    number: dict[str, NDArray[np.float64]]
    types: list[frozenset[str] | None]
    pinned: NDArray[np.bool_]
    profiles: list[tuple[Profile, ...]]
    fault: dict[int, str]
    columns: frozenset[str]
    """Names of the fields, settings and limits that the jobs have as columns."""

    @property
    def rows(self) -> int:
        """Counts the jobs."""
        return len(self.ids)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Maps ids to rows."""
        return dict(zip(self.ids, range(self.rows), strict=True))


def read_jobs(source: Any, profile: Any, settings: dict[str, Any], decimal: str | None = None) -> Jobs:
    """Reads the jobs; an unusable cell is a fault of its row."""
    table = input_table("job", source, decimal=decimal)
    for name in table.extra.keys() - {*OWN}:
        if nearest(name, OWN, 0.82) not in (None, *table.extra, *dict(table.fields)):
            raise unknown("column", name, OWN, field=name, file=table.file)
    columns = {name: table.extra[name] for name in OWN if name in table.extra}
    columns |= {name: _with_decimal(column, decimal) for name, column in columns.items() if name in _NUMBERS}
    deadline = settings.pop("deadline_hours", None)
    if deadline is not None or "deadline_hours" in dict(table.fields):
        deadlines = table.cells("deadline_hours")
        columns["deadline_hours"] = [deadline if cell is None else cell for cell in deadlines]
    cells = {name: cells_of(columns[name]) for name in ("gpu", "pinned", "profile") if name in columns}
    fault: dict[int, str] = {}
    if table.missing_ids is not None:
        fault = {row: str(table.id_fault(row)) for row in np.flatnonzero(table.missing_ids).tolist()}
    numbers = {name: _numbers(name, columns.get(name), table.rows, fault) for name in _NUMBERS}
    for row in np.flatnonzero(numbers["min_gpus"] > numbers["max_gpus"]).tolist():
        least, most = (numbers[name][row] for name in ("min_gpus", "max_gpus"))
        fault.setdefault(row, f"min_gpus must be at most max_gpus, got {least:.0f} and {most:.0f}")
    ids = [str(name) for name in table.id_list]
    return Jobs(
        replace(
            table,
            fields=[(name, _own(data)) for name, data in table.fields if name != "deadline_hours"],
            extra={name: _own(column) for name, column in table.extra.items()},
            ids=_own(table.ids),
        ),
        ids,
        numbers,
        _types(cells.get("gpu"), table.rows, fault),
        _flags(cells.get("pinned"), table.rows, fault),
        _profiles(table, ids, profile, cells.get("profile"), fault),
        {row: f"{table.where(row)}: {text}" if table.file else text for row, text in fault.items()},
        frozenset((*dict(table.fields), *table.extra)),
    )


def _with_decimal(column: Any, decimal: str | None) -> Any:
    if decimal is None:
        return column
    return [plain_number(cell, decimal) if isinstance(cell, str) else cell for cell in cells_of(column)]


def _own(column: Any) -> Any:
    """Copies a column: its owner may write to it before the rows of the answer are made."""
    if isinstance(column, tuple):
        return tuple(map(_own, column))
    if hasattr(column, "combine_chunks"):  # Arrow's, which may be a view of pandas' memory
        return column.take(np.arange(len(column)))
    return column.copy() if isinstance(column, np.ndarray | list) else column


def _numbers(name: str, column: Any, rows: int, fault: dict[int, str]) -> NDArray[np.float64]:
    unknown, legal, is_legal = _NUMBERS[name]
    if column is None:
        return np.full(rows, float(unknown))
    numbers = floats_of(column)
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(~(is_legal(numbers) & np.isfinite(numbers)))
    cells = cells_of(column) if len(wrong) else []
    for row in wrong.tolist():
        if cells[row] is not None:
            text = str(must_be(legal, cells[row], field=name))
            fault.setdefault(row, text + decimal_hint([text]))
    numbers[wrong] = unknown
    return numbers


def _flags(cells: list[Any] | None, rows: int, fault: dict[int, str]) -> NDArray[np.bool_]:
    flags = np.zeros(rows, bool)
    for row, cell in enumerate(cells or ()):
        text = str(cell).lower()
        if cell is not None and text not in ("true", "false", "1", "0"):
            fault.setdefault(row, str(must_be("true or false", cell, field="pinned")))
        flags[row] = text in ("true", "1")
    return flags


def _types(cells: list[Any] | None, rows: int, fault: dict[int, str]) -> list[frozenset[str] | None]:
    """Reads GPU types, texts between `;` or lists of them; None: any."""
    types: list[frozenset[str] | None] = [None] * rows
    for row, cell in enumerate(cells or ()):
        several = cell.split(";") if isinstance(cell, str) else cell
        if isinstance(several, (list, tuple)) and all(isinstance(name, str) for name in several):
            types[row] = frozenset(name.strip() for name in several)
        elif cell is not None:
            fault.setdefault(row, str(must_be("GPU types between ;", cell, field="gpu")))
    return types


def _profiles(
    table: InputTable, ids: list[str], profile: Any, paths: list[Any] | None, fault: dict[int, str]
) -> list[tuple[Profile, ...]]:
    """Finds the profiles of each job: by its own column, else by its id, else the shared ones.

    Raises:
        InputError: a profile cannot be read. Its jobs would wait for ever.
    """
    own = profile if isinstance(profile, Mapping) else {}
    several = {
        id(value): as_profiles(value) for value in {id(value): value for value in own.values()}.values()
    }
    each = {str(job): several[id(value)] for job, value in own.items()}
    if unknown := sorted(each.keys() - set(ids)):
        raise InputError(f"profile has a job that is not there: {shown(unknown[0])}", field="profile")
    shared = () if isinstance(profile, Mapping) else as_profiles(profile)
    profiles = [each.get(job, shared) for job in ids] if each else [shared] * len(ids)
    read: dict[str, tuple[Profile, ...]] = {}
    for row, path in enumerate(paths or ()):
        if path is None:
            continue
        try:
            if not isinstance(path, str):
                fault.setdefault(row, str(must_be("the path of a profile", path, field="profile")))
                continue
            if path not in read:
                read[path] = tuple(Profile.load(part.strip()) for part in path.split(";"))
            profiles[row] = read[path]
        except UnicodeError:
            fault.setdefault(row, str(must_be("the path of a profile", path, field="profile")))
        except InputError as error:
            at = table.row_offset + row + 1
            raise InputError(f"profile: {error}", file=table.file, row=at, field="profile") from None
    return profiles


@dataclass(frozen=True)
class Choices:
    """The legal counts of all jobs as columns, job by job, with the figures of their plans."""

    job: NDArray[np.int64]
    kind: NDArray[np.uint32]
    gpus: NDArray[np.int64]
    cluster: NDArray[np.uint32]
    is_held: NDArray[np.bool_]
    rate: NDArray[np.float64]
    """Samples per second, weighted by statistical efficiency under `goodput`; NaN if not known."""
    goodput: NDArray[np.float64]
    hours: NDArray[np.float64]
    """Hours left of the run."""
    reasons: NDArray[np.uint64]
    """Bit sets."""


class Planner:
    """Plans jobs on the counts of a pool, in bulk, each with its own profiles."""

    def __init__(self, jobs: Jobs, pool: Pool, settings: dict[str, Any]) -> None:
        question = query(pool.clusters(), **settings)
        assert question.clusters is not None
        self.jobs, self.pool, self.settings = jobs, pool, question.settings
        bare = replace(jobs.table, extra={})
        tables = [table.with_defaults(self.settings) for table in (bare, question.clusters)]
        self.fleet = Fleet(tables[0], tables[1], self.settings, None, USUAL)
        self.starts = np.cumsum([0, *(len(kind.counts) for kind in pool.kinds)])
        self.goodput = self._policy_is("goodput")
        _, self.first, self.group = np.unique(
            np.array([*map(id, jobs.profiles)], np.int64), return_index=True, return_inverse=True
        )
        self.workloads = [workloads_of(jobs.profiles[row]) for row in self.first.tolist()]

    def _policy_is(self, name: str) -> NDArray[np.bool_]:
        default, own = self.settings["policy"], self.jobs.table.fields
        if "policy" not in dict(own):
            return np.full(self.jobs.rows, default == name)
        cells = self.jobs.table.cells("policy")
        return np.array([(default if cell is None else cell) == name for cell in cells], bool)

    def planned(
        self, job: NDArray[np.int64], cluster: NDArray[np.uint32], columns: tuple[str, ...]
    ) -> dict[str, NDArray[Any]]:
        """Plans these pairs, and returns these columns of the core."""
        columns_of = {name: np.empty(len(job), RESULTS[name]) for name in columns}
        group = self.group[job]
        for number in np.unique(group).tolist():
            at = np.flatnonzero(group == number)
            pairs = job[at].astype(np.uint32), cluster[at]
            part = replace(self.fleet, pairs=pairs, workloads=self.workloads[number], columns=columns)
            for name, values in part._computed(columns).items():
                columns_of[name][at] = values
        return columns_of

    def uncapped(self, job: NDArray[np.int64], cluster: NDArray[np.uint32]) -> int:
        """Counts the pairs without a cap on the micro-batch."""
        planned = self.planned(job, cluster, ("status", "memory_gib"))
        sheets = any(memory_gib_of(profile.gpu) is not None for own in self.jobs.profiles for profile in own)
        pairs = job.astype(np.uint32), cluster
        return replace(self.fleet, pairs=pairs, sheets=sheets).uncapped(planned)

    def faults(self, row: int, cluster: int) -> str:
        """Names the illegal cells of a job, and its row; empty where there are none."""
        pair = np.array([row], np.uint32), np.array([cluster], np.uint32)
        texts = replace(self.fleet, pairs=pair).row_faults(0)
        return f"{self.fleet.jobs.where(row)}: {'; '.join(texts)}{decimal_hint(texts)}" if texts else ""

    def choices(self, shapes: NDArray[np.int64]) -> Choices:
        """Returns the legal counts of all jobs; `shapes` has the kind and GPUs of each now, −1 if none."""
        job, cluster = self._pairs(shapes)
        kind = (np.searchsorted(self.starts, cluster, "right") - 1).astype(np.uint32)
        counts = np.concatenate([kind_of_gpu.counts for kind_of_gpu in self.pool.kinds])
        same = (shapes[0][job] == kind) & (shapes[1][job] == counts[cluster])
        plans = self.planned(job, cluster, _OF_CHOICES)
        rate = np.where(plans["status"] == 2, np.nan, plans["samples_per_second"])
        tuned, noise = self._noise()
        batch = np.where(plans["effective_batch"] > 0, plans["effective_batch"], np.nan)
        goodput = rate * (noise[job] + tuned[job]) / (noise[job] + batch)
        rate = np.where(self.goodput[job], goodput, rate)
        rate[~(rate > 0)] = np.nan
        samples = self.jobs.number["done_samples"][job]
        hours = np.maximum(plans["hours"] - samples / (3600 * rate), 0.0)
        return Choices(job, kind, counts[cluster], cluster, same, rate, goodput, hours, plans["reasons"])

    def _noise(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the tuned batch and the noise scale of each job: its own, else that of its profile."""
        tuned, noise = (self.jobs.table.reals(name) for name in ("effective_batch", "noise_scale"))
        unknown = np.flatnonzero(np.isnan(noise) & (tuned > 0))
        batches, at = np.unique(tuned[unknown], return_inverse=True)
        pairs, pair_of = np.unique(self.group[unknown] * len(batches) + at, return_inverse=True)
        scales = []
        for pair in pairs.tolist():
            group, at_batch = divmod(pair, len(batches))
            profiles, batch = self.jobs.profiles[self.first[group]], batches[at_batch].item()
            known = (profile.noise_scale_over_run(batch) for profile in profiles)
            scales.append(next((scale for scale in known if scale is not None), math.nan))
        noise[unknown] = np.array(scales)[pair_of]
        return tuned, noise

    def _pairs(self, shapes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Returns the job and the cluster of every legal count, sorted by job, then kind, then count."""
        jobs, number = self.jobs, self.jobs.number
        least, most = number["min_gpus"].copy(), np.minimum(number["max_gpus"], self._useful())
        sound = np.ones(jobs.rows, bool)
        sound[list(jobs.fault)] = False
        typed = [row for row, types in enumerate(jobs.types) if types is not None]
        blocks = []
        for at, kind in enumerate(self.pool.kinds):
            legal = sound & ~jobs.pinned
            name = str(kind.hardware.get("gpu"))
            legal[[row for row in typed if name not in (jobs.types[row] or ())]] = False
            first = np.searchsorted(kind.counts, least, "left")
            size = np.where(legal, np.searchsorted(kind.counts, most, "right") - first, 0).clip(0)
            keeps = np.flatnonzero(sound & jobs.pinned & (shapes[0] == at))
            first[keeps], size[keeps] = np.searchsorted(kind.counts, shapes[1][keeps]), 1
            blocks.append((first, size))
        if (rows := sum(int(size.sum()) for _, size in blocks)) > _MAX_ROWS:
            raise InputError(f"the jobs have {rows:,} counts to choose from: set max_gpus", field="max_gpus")
        job = np.concatenate([np.repeat(np.arange(jobs.rows), size) for _, size in blocks])
        parts = []
        for start, (first, size) in zip(self.starts.tolist(), blocks, strict=False):
            within = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            parts.append(start + np.repeat(first, size) + within)
        order = np.argsort(job, kind="stable")
        return job[order], np.concatenate(parts)[order].astype(np.uint32)

    def _useful(self) -> NDArray[np.float64]:
        """Returns the most GPUs of each job under policy keep: each replica needs a sample."""
        names = ("effective_batch", "model_parallel", "batch_tolerance")
        batch, own, tolerance = (self.jobs.table.reals(name) for name in names)
        parallel = floats_of([kind.hardware.get("model_parallel") for kind in self.pool.kinds])
        of_all = self.settings["batch_tolerance"] or 0.0
        tolerance = np.where(np.isnan(tolerance), of_all, tolerance)
        with np.errstate(over="ignore", invalid="ignore"):
            most = batch * (1 + tolerance) * np.fmax(own, np.fmax(1, np.nanmax(parallel, initial=1))) + 1
        return np.where(self._policy_is("keep") & ~np.isnan(most), most, np.inf)
