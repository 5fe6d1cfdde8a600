"""What is asked of many jobs, and the fleet that comes of it, ready to be planned whole or block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from isobatch import _core
from isobatch.errors import InputError, must_be, together, unknown
from isobatch.fleet import strays
from isobatch.fleet.columns import CLUSTER_FIELDS, JOB_FIELDS, SETTINGS_FIELDS
from isobatch.fleet.made import Made, to_metadata
from isobatch.fleet.pairs import pairs_of
from isobatch.fleet.results import ON_REQUEST, RESULTS, USUAL
from isobatch.fleet.rows import Fleet, Pairs
from isobatch.fleet.said import SAID
from isobatch.fleet.side import Side, fields_of, gpu_types_of, needed_of, side_of, with_defaults
from isobatch.forecast.profile import Profile, as_profiles, workloads_of
from isobatch.planning.settings import settings_of

SELECT = ("all", "fastest", "cheapest", "goodput")
"""By what the rows of a job are chosen."""


@dataclass(frozen=True)
class Query:
    """What is asked of every job: on which clusters, how, which columns of the result, and which rows of it.

    `clusters` is None where each row of the jobs has its own cluster's columns.
    """

    clusters: Side | None
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
    def needs(self) -> tuple[str, ...]:
        """Columns without which no jobs can be planned."""
        return needed_of("job")

    def say_strays(self, names: Iterable[str], note: Callable[[str], None] | None = None) -> None:
        """Says which columns of the jobs and the clusters are no fields; without `note`, warns of those that look like a slip."""
        # A field of the other side is no slip: it is carried along on purpose.
        fields = {*fields_of("job"), *fields_of("cluster"), "job", "cluster"}
        every = (*names, *(() if self.clusters is None else self.clusters.carried))
        if note is None:
            strays.warn(every, fields)
        elif said := strays.note(every, fields):
            note(said)

    @property
    def metadata(self) -> dict[str, str]:
        """What a file of plans says of how they were made."""
        types = {} if self.clusters is None else gpu_types_of(self.clusters)
        return to_metadata(Made(self.settings, self.select, self.top, types))

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
        jobs = side_of(
            "job", source, file=file, before=before, number=number, unique=self.clusters is not None
        )
        jobs, clusters, rows = self._met(jobs, pairs)
        _refuse_doubles(jobs, clusters)
        crossed = self.clusters is not None
        every = (
            *_names(jobs, numbered=crossed and numbered),
            *_names(clusters, numbered=crossed),
            *USUAL,
        )
        asked = (*every, *ON_REQUEST, *SAID)
        for name in self.columns or ():
            if name not in asked:
                raise unknown("column", name, asked, file=file, field="columns")
            if name in SAID and name in every:
                raise InputError(
                    f"{name} is a column of the tables and, asked for by name, of the result: rename it",
                    file=file,
                    field=name,
                )
        jobs, clusters = (with_defaults(side, self.settings) for side in (jobs, clusters))
        columns = every if self.columns is None else self.columns
        fleet = Fleet(jobs, clusters, self.settings, rows, columns, self._workloads)
        if self.select == "all":
            return fleet
        assert self._workloads is not None  # `query` has seen to it
        if self.select == "goodput" and not (self._knows_noise or _says(jobs, "noise_scale")):
            raise InputError(
                "select='goodput' needs noise_scale, of the jobs or the profile: without it no row can be compared",
                file=file,
                field="select",
            )
        return fleet.chosen(self._workloads, self.select, self.top)

    def _met(self, jobs: Side, pairs: Any) -> tuple[Side, Side, Pairs | None]:
        """The jobs, their clusters, and which meet; None: all."""
        if self.clusters is not None:
            return jobs, self.clusters, None if pairs is None else pairs_of(pairs, jobs, self.clusters)
        if pairs is not None:
            raise InputError("pairs needs clusters: without any, each row has its own", field="pairs")
        jobs, clusters = own_clusters(jobs)
        each = np.arange(jobs.rows, dtype=np.uint32)
        return jobs, clusters, (each, each)

    @property
    def _knows_noise(self) -> bool:
        return any(it.noise_scale is not None or it.noise_by_progress for it in self.profiles)

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
    **settings: Any,
) -> Query:
    """Reads and checks all that is asked; the arguments are those of `plan_fleet`."""
    shared = settings_of(settings)._asdict()
    # Refused here, once, rather than in every row.
    faults = [must_be(legal, got, field=name) for name, got, legal in _core.check_settings(shared)]
    if faults:
        raise together(faults)
    profiles = as_profiles(profile)
    _check_choice(select, top, profiles, clusters)
    side = None if clusters is None else _read("cluster", clusters)
    if select == "cheapest" and side is not None and not _says(side, "price_per_gpu_hour"):
        raise InputError(
            "select='cheapest' needs price_per_gpu_hour, of the clusters: without it no row has a cost",
            field="select",
        )
    made = Query(side, shared, _column_names(columns), profiles, select, 1 if top is None else top)
    _ = made._workloads  # two profiles for one GPU type are refused here
    return made


def _says(side: Side, field: str) -> bool:
    """Whether a field may be known in some row. Of a file, which comes in blocks, it is enough that it has the column."""
    data = dict(side.known).get(field)
    if data is None or side.arrow or isinstance(data, tuple):
        return data is not None
    return not (data != data).all()


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
        raise InputError(
            f"select={select!r} needs a profile, for the times (see isobatch calibrate)", field="profile"
        )
    if clusters is None:
        raise InputError("select needs clusters: each row has its own, and no choice", field="select")


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


def own_clusters(rows: Side) -> tuple[Side, Side]:
    """Jobs and clusters of a table that holds both in each row."""
    own = {name: rows.carried[name] for name in (*CLUSTER_FIELDS, "cluster") if name in rows.carried}
    if not {"nodes", "gpus_per_node"} & own.keys():
        tuned = " (gpus is the count that the job was tuned on)" if "gpus" in dict(rows.known) else ""
        raise InputError(
            f"without clusters each row needs its own: add a column nodes or gpus_per_node, or give clusters{tuned}",
            file=rows.file,
        )
    source: Any = own
    if rows.arrow:
        import pyarrow as pa

        source = pa.table(own)
    clusters = side_of("cluster", source, file=rows.file, before=rows.before, unique=False)
    carried = {name: column for name, column in rows.carried.items() if name not in own}
    return replace(rows, carried=carried), clusters


def _names(side: Side, *, numbered: bool) -> tuple[str, ...]:
    """The side's columns in the result."""
    return (*((side.kind,) if numbered or side.ids is not None else ()), *side.carried)


def _refuse_doubles(jobs: Side, clusters: Side) -> None:
    """No column of the result may have two meanings, and no setting two columns."""
    taken = {**dict.fromkeys((*RESULTS, "job", "cluster"), "the result")}
    for side in (jobs, clusters):
        settings = [name for name, _ in side.known if name in SETTINGS_FIELDS]
        for name in (*side.carried, *settings):
            if name in taken:
                raise InputError(
                    f"{name} is a column of the {side.kind}s and of {taken[name]}: rename it", field=name
                )
        taken.update(dict.fromkeys((*side.carried, *settings), "the jobs"))


def _read(kind: str, source: Any) -> Side:
    if isinstance(source, (str, os.PathLike)):
        from isobatch.files.read import read_table

        return side_of(kind, read_table(source), file=os.fspath(source))
    return side_of(kind, source)
