"""The tables that a fleet's plans were made of, looked at again: what is illegal in a row."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.fleet.query import own_clusters
from isobatch.fleet.rows import Fleet
from isobatch.fleet.side import Side, side_of
from isobatch.planning.settings import settings_of


class Inputs:
    """A fleet's jobs, and its clusters where they are in a table of their own.

    Args:
        jobs: a path or URL, or a table, as in `plan_fleet`.
        clusters: likewise; None: each job's row has its own cluster, or the clusters are not looked at.

    Raises:
        InputError: a table cannot be read or used.
    """

    def __init__(self, jobs: Any, clusters: Any = None) -> None:
        self._jobs = _side("job", jobs)
        self._own = clusters is None and bool({"nodes", "gpus_per_node"} & self._jobs.carried.keys())
        self._known = clusters is not None or self._own
        if self._own:
            self._jobs, self._clusters = own_clusters(self._jobs)
        else:
            # Any legal cluster shows what is wrong with a job.
            self._clusters = _side("cluster", [1] if clusters is None else clusters)

    @cached_property
    def _job_rows(self) -> dict[str, int]:
        return _rows(self._jobs)

    @cached_property
    def _cluster_rows(self) -> dict[str, int]:
        return _rows(self._clusters)

    def fault(self, job: Any, cluster: Any = None) -> str | None:
        """What is illegal in a row of the plans, by its ids: where it is, its field, its value and what is legal; None: nothing.

        Raises:
            InputError: the tables have no such job, or no such cluster.
        """
        at = _row("job", job, self._job_rows, self._jobs)
        other = at if self._own else 0
        if self._known and not self._own and cluster is not None:
            other = _row("cluster", cluster, self._cluster_rows, self._clusters)
        pair = self._jobs.row(at), self._clusters.row(other)
        wrong = Fleet(*pair, settings_of({})._asdict(), None, ("status",)).wrong(0)
        if wrong is None:
            return None
        where = [pair[0].where(0), *([pair[1].where(0)] if self._known and not self._own else [])]
        return f"{', '.join(where)}: {wrong}"


def _side(kind: str, source: Any) -> Side:
    if not isinstance(source, (str, os.PathLike)):
        return side_of(kind, source)
    from isobatch.files.read import read_table

    return side_of(kind, read_table(source), file=os.fspath(source))


def _rows(side: Side) -> dict[str, int]:
    ids = side.numbered
    listed = ids.to_pylist() if hasattr(ids, "to_pylist") else ids.tolist()
    return {str(name): row for row, name in enumerate(listed)}


def _row(kind: str, name: Any, rows: dict[str, int], side: Side) -> int:
    if name is None:
        raise InputError(f"the plans have no column {kind}: nothing says which row was meant", field=kind)
    found = rows.get(str(name))
    if found is None:
        raise unknown(kind, str(name), rows, field=kind, file=side.file)
    return found
