"""Questions about many jobs, and the fleets made of them, ready to be planned whole or block by block."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from isobatch import _core
from isobatch.errors import InputError, must_be, unknown
from isobatch.fleet import results
from isobatch.fleet.columns import CLUSTER_FIELDS, SETTINGS_FIELDS
from isobatch.fleet.rows import Fleet, Pairs, read_pairs
from isobatch.fleet.table import FIELDS, InputTable, input_table
from isobatch.forecast.data_sheets import memory_gib_of
from isobatch.forecast.profile import Profile, as_profiles, workloads_of
from isobatch.planning.settings import checked_settings
from isobatch.words import few, nearest, printable

SELECT = ("all", "fastest", "cheapest", "goodput")
"""By what the rows of a job are chosen."""


@dataclass(frozen=True)
class Query:
    """A question about every job; `clusters` is None where each row has its own cluster's columns."""

    clusters: InputTable | None
    settings: dict[str, Any]
    columns: tuple[str, ...] | None = None
    profiles: tuple[Profile, ...] = ()
    select: str = "all"
    top: int = 1
    decimal: str | None = None
    given: frozenset[str] = frozenset()
    """Names of the settings that were not left to their defaults."""

    @property
    def rows_per_job(self) -> int:
        """Rows of the result for each job."""
        return 1 if self.clusters is None else self.clusters.rows

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns of the jobs for the planner; others are repeated as they are."""
        own = CLUSTER_FIELDS if self.clusters is None else ()
        return (*FIELDS["job"], *own)

    def tell_unknown_columns(
        self, names: Iterable[str], note: Callable[[str], None] | None = None, level: int = 3
    ) -> None:
        """Notes the columns of the jobs and the clusters other than fields, and columns in a setting's place.

        Without `note` it warns of likely slips, at the line `level` calls above.
        """
        # A field of the other side is no slip: it is repeated on purpose.
        fields = {*FIELDS["job"], *FIELDS["cluster"], "job", "cluster"}
        names = tuple(names)
        every = (*names, *(() if self.clusters is None else self.clusters.extra))
        ids = frozenset() if "job" in names or note is None else _JOB_NAMES
        if note is None:
            every = tuple(name for name in every if name not in fields and _hint(name, fields))
        text = unknown_columns(every, fields, ids)
        if note is not None:
            columns = {*names, *(name for name, _ in (self.clusters.fields if self.clusters else ()))}
            for line in (*filter(None, [text]), *replaced(self.given & columns)):
                note(line)
        elif text is not None:
            warnings.warn(text, stacklevel=level)

    def refuse_unknown_names(self, every: Sequence[str], file: str | None = None) -> None:
        """Refuses unknown names among `columns`; `every` are those of the result without being asked."""
        known = (*every, *results.ON_REQUEST, *results.ECHOED)
        for name in self.columns or ():
            if name not in known:
                raise unknown("column", name, known, file=file, field="columns")
            if name in results.ECHOED and name in every:
                why = f"{name} is a column of the tables and, asked for by name, of the result: rename it"
                raise InputError(why, file=file, field=name)

    @property
    def metadata(self) -> dict[str, str]:
        """The provenance of plans, for their files."""
        types = {} if self.clusters is None else _gpu_types(self.clusters)
        profiles = tuple(profile.model or profile.workload for profile in self.profiles)
        return results.to_metadata(results.Provenance(self.settings, self.select, self.top, types, profiles))

    def fleet(self, source: Any, *, pairs: Any = None, numbered: bool = True, **place: Any) -> Fleet:
        """Makes a fleet of the jobs in a table, at a place (`file`, `row_offset`, `first_id`) among others.

        Jobs without ids are numbered, or have none.
        """
        crossed = self.clusters is not None
        jobs = input_table("job", source, unique=crossed, decimal=self.decimal, **place)
        file = jobs.file
        jobs, clusters, rows = self._with_clusters(jobs, pairs)
        _refuse_double_meanings(jobs, clusters)
        own = _result_names(jobs, numbered=crossed and numbered)
        every = (*own, *_result_names(clusters, numbered=crossed), *results.USUAL)
        self.refuse_unknown_names(every, file)
        jobs, clusters = (table.with_defaults(self.settings) for table in (jobs, clusters))
        columns = every if self.columns is None else self.columns
        sheets = any(memory_gib_of(profile.gpu) is not None for profile in self.profiles)
        fleet = Fleet(jobs, clusters, self.settings, rows, columns, self._workloads, sheets=sheets)
        if self.select == "all":
            return fleet
        assert self._workloads is not None  # `query` has seen to it
        noisy = any(profile.noise_scale is not None or profile.noise_by_progress for profile in self.profiles)
        if self.select == "goodput" and not (noisy or jobs.has("noise_scale")):
            lacks = "noise_scale, of the jobs or the profile: without it no row can be compared"
            raise InputError(f"select='goodput' needs {lacks}", file=file, field="select")
        return fleet.chosen(self._workloads, self.select, self.top)

    def _with_clusters(self, jobs: InputTable, pairs: Any) -> tuple[InputTable, InputTable, Pairs | None]:
        """Returns the jobs, their clusters, and the pairs to plan; None: all."""
        if self.clusters is not None:
            return jobs, self.clusters, None if pairs is None else read_pairs(pairs, jobs, self.clusters)
        if pairs is not None:
            raise InputError("pairs needs clusters: without any, each row has its own", field="pairs")
        jobs, clusters = own_clusters(jobs, self.decimal)
        each = np.arange(jobs.rows, dtype=np.uint32)
        return jobs, clusters, (each, each)

    @cached_property
    def _workloads(self) -> _core.Workloads | None:
        return workloads_of(self.profiles)


def query(
    clusters: Any = None,
    *,
    columns: Iterable[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    select: str = "all",
    top: int | None = None,
    decimal: str | None = None,
    **settings: Any,
) -> Query:
    """Reads and checks a question: the arguments of `plan_fleet`, and the sign before fractions in texts."""
    shared = checked_settings(settings)  # refused here, once, rather than in every row
    profiles = as_profiles(profile)
    _check_choice(select, top, profiles, clusters)
    table = None if clusters is None else input_table("cluster", clusters, decimal=decimal)
    if select == "cheapest" and table is not None and not table.has("price_per_gpu_hour"):
        lacks = "price_per_gpu_hour, of the clusters: without it no row has a cost"
        raise InputError(f"select='cheapest' needs {lacks}", field="select")
    names, most = _column_names(columns), 1 if top is None else top
    query = Query(table, shared, names, profiles, select, most, decimal, frozenset(settings))
    _ = query._workloads  # two profiles for one GPU type are refused here
    return query


def _check_choice(select: str, top: int | None, profiles: Sequence[Profile], clusters: Any) -> None:
    if not isinstance(select, str) or select not in SELECT:
        raise unknown("choice", select, SELECT, field="select")
    if top is not None and (type(top) is not int or not 0 < top < 2**32):
        raise must_be("a whole number from 1 to 2^32-1", top, field="top")
    if select == "all":
        if top is not None:
            raise InputError("top needs select: fastest, cheapest or goodput", field="top")
        return
    if not profiles:
        lacks = "a profile, for the times (see isobatch calibrate)"
        raise InputError(f"select={select!r} needs {lacks}", field="profile")
    if clusters is None:
        raise InputError("select needs clusters to choose from: each row has its own", field="select")


def _column_names(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if not isinstance(columns, Iterable) or not getattr(columns, "ndim", 1):
        raise must_be("names of columns", columns, field="columns")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise must_be("names of columns", name, field="columns")
        if name in names[:at]:
            raise InputError(f"columns: {name!r} is listed twice", field="columns")
    return names


def own_clusters(rows: InputTable, decimal: str | None = None) -> tuple[InputTable, InputTable]:
    """Divides a table with a job and a cluster in each row."""
    own = {name: rows.extra[name] for name in (*CLUSTER_FIELDS, "cluster") if name in rows.extra}
    if not {"nodes", "gpus_per_node"} & own.keys():
        tuned = " (gpus is the count that the job was tuned on)" if "gpus" in dict(rows.fields) else ""
        todo = f"add a column nodes or gpus_per_node, or give clusters{tuned}"
        raise InputError(f"without clusters each row needs its own: {todo}", file=rows.file)
    source: Any = own
    if rows.arrow:
        import pyarrow as pa

        source = pa.table(own)
    clusters = input_table(
        "cluster", source, file=rows.file, row_offset=rows.row_offset, unique=False, decimal=decimal
    )
    extra = {name: column for name, column in rows.extra.items() if name not in own}
    return replace(rows, extra=extra), clusters


def _gpu_types(clusters: InputTable) -> dict[str, str]:
    """Returns the known GPU types by their clusters' ids; of very many clusters none."""
    data = dict(clusters.fields).get("gpu")
    if not isinstance(data, tuple) or clusters.rows > results.MAX_NAMED_CLUSTERS:
        return {}
    at, types = data
    ids = zip(clusters.id_list, at.tolist(), strict=True)
    return {str(name): gpu for name, place in ids if (gpu := types[place])}


def _result_names(table: InputTable, *, numbered: bool) -> tuple[str, ...]:
    """Returns the table's columns in the result."""
    return (*((table.kind,) if numbered or table.ids is not None else ()), *table.extra)


def _refuse_double_meanings(jobs: InputTable, clusters: InputTable) -> None:
    """Refuses a column of the result with two meanings, and a setting with two columns."""
    owners = dict.fromkeys((*results.RESULTS, "job", "cluster"), "the result")
    for table in (jobs, clusters):
        settings = [name for name, _ in table.fields if name in SETTINGS_FIELDS]
        for name in (*table.extra, *settings):
            if name in owners:
                both = f"of the {table.kind}s and of {owners[name]}"
                raise InputError(f"{name} is a column {both}: rename it", field=name)
        owners.update(dict.fromkeys((*table.extra, *settings), "the jobs"))


# Columns that are no fields: they are repeated in the result, and one that looks like a slip is told

_MIN_LIKENESS = 0.82
"""How alike two names must be, from 0 to 1, for one to be taken for a slip of the other."""

_LIMITS = frozenset(f"{end}_{unit}" for end in ("min", "max") for unit in ("gpus", "nodes", "world_size"))
"""Names that sound as if they limited a job's clusters, and do not."""
_NO_LIMIT = "limits nothing: name the clusters of each job by pairs"
_ONE_PROFILE = "not read: a fleet takes one profile for each GPU type, by --profile (profile=)"
_JOB_NAMES = frozenset(("name", "id", "job_id", "job_name", "jobid", "jobname"))
"""Names that others give to the jobs' ids."""


def unknown_columns(names: Iterable[str], fields: Collection[str], ids: Collection[str] = ()) -> str | None:
    """Describes columns other than `fields`; a name in `ids` may be meant as `job`. None: there are none."""
    hinted = []
    for name in names:
        if name not in fields:
            hint = "job?" if name.lower() in ids else _hint(name, fields)
            hinted.append(f"{printable(name, 80)} ({hint})" if hint else printable(name, 80))
    return f"not fields, carried along: {few(hinted, 20)}" if hinted else None


def replaced(names: Iterable[str]) -> Iterator[str]:
    """Yields a note for each keyword of these names: in rows with a value of their own it is not used."""
    for name in sorted(names):
        yield f"--{name.replace('_', '-')} ({name}=) is only used in rows whose own column {name} is empty"


def _hint(name: str, fields: Collection[str]) -> str | None:
    """Suggests another meaning of a name; None where it most likely has none."""
    plain = name.strip().lower().replace(" ", "_")
    if plain in _LIMITS:
        return _NO_LIMIT
    if plain == "profile":
        return _ONE_PROFILE
    close = nearest(name, fields, _MIN_LIKENESS)
    return close and f"{close}?"
