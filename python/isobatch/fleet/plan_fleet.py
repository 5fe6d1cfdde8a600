"""Many plans in one call, from tables or from files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from isobatch.errors import must_be, needs_extra
from isobatch.fleet.query import query
from isobatch.forecast.profile import Profile

if TYPE_CHECKING:
    from isobatch.fleet.plan_folder import FolderPlans


def plan_fleet(
    jobs: Any,
    clusters: Any = None,
    *,
    pairs: Any = None,
    columns: Iterable[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    select: str = "all",
    top: int | None = None,
    **settings: Any,
) -> Any:
    """Plans every job on every cluster, or the named pairs.

    It uses all cores (RAYON_NUM_THREADS sets another number of threads) and releases Python's lock.

    Args:
        jobs: a table whose columns are Recipe's fields, and `job`, an id; missing optional columns and null
            cells take Recipe's defaults, other columns are carried along (with a warning where the name looks
            like a slip). A mapping of NumPy arrays, any object with `__arrow_c_stream__` (pandas, polars,
            pyarrow, DuckDB), a path or URL (CSV, Parquet, JSON lines, a folder or a glob of files with the
            same columns), or a sequence of Recipe.
        clusters: the same with Cluster's fields, and `cluster`; or a sequence of Cluster or GPU counts. None:
            each row of the jobs has its own cluster's columns, and is planned on that one.
        pairs: a table with the columns `job` and `cluster`, where not all are to meet.
        columns: the columns of the result to compute, in this order; None: all but those that
            `isobatch.schedules.COLUMNS` adds for `schedule_matrix` (docs/fleet.md).
        profile: as in `plan`; of several, each row takes the one for its cluster's GPU type.
        select: "all" rows, or of each job the `top` rows that are "fastest", "cheapest" or reach the loss
            soonest ("goodput"), best first, ties in the order of the rows. Rows that cannot be compared are
            left out, and the kept rows of such a job have the caution `not_compared`. A job without a
            comparable row keeps its first plan, a job without a plan its first row, with the reasons.
        top: how many; None: one. It needs `select`.
        settings: the keywords of `plan`; a column of the same name in either table wins.

    Returns:
        A `pyarrow.Table`, its unknown values null; where both tables are mappings of arrays or sequences, a
        dict of NumPy arrays, unknown −1 or NaN and `reasons` a bit set (`Reason.of` reads it). Rows come in
        the order of the pairs, or job by job. A row that cannot be planned has status "infeasible" and its
        reasons; it stops no other.

    Raises:
        InputError: a table cannot be read, a column is missing or of an impossible type, an id is not unique,
            a setting is not legal, the result is larger than memory.

    >>> import numpy as np
    >>> jobs = {"effective_batch": np.array([256, 250]), "lr": np.array([0.1, 0.1])}
    >>> plans = plan_fleet(jobs, [8, 7], columns=["status", "micro_batch"])
    >>> plans["status"].tolist(), plans["micro_batch"].tolist()
    (['ok', 'infeasible', 'infeasible', 'infeasible'], [32, -1, -1, -1])
    """
    question = query(clusters, columns=columns, profile=profile, select=select, top=top, **settings)
    fleet = question.fleet(jobs, pairs=pairs)
    question.tell_unknown_columns(fleet.jobs.extra)
    return fleet.plan()


def plan_files(
    jobs: str | os.PathLike[str],
    clusters: Any,
    output: str | os.PathLike[str],
    *,
    engine: str = "local",
    resume: bool = True,
    columns: Iterable[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    select: str = "all",
    top: int | None = None,
    **settings: Any,
) -> FolderPlans:
    """Plans jobs in files into a folder, in flat memory: each file of jobs becomes a Parquet file of plans,
    which appears whole or not at all (docs/fleet.md).

    Args:
        jobs: a path or URL: a file of jobs (CSV, Parquet, JSON lines), a folder, or a glob of files with the
            same columns.
        clusters: as in `plan_fleet`; None: each row of the jobs has its own cluster's columns.
        output: the folder, a path or URL.
        engine: "local", or "ray": the Ray cluster that is connected, else one on this machine.
        resume: leave a file of plans as it is where the same arguments made it of the same jobs; False plans
            all anew.
        columns, profile, select, top, settings: as in `plan_fleet`.

    Returns:
        What is in the folder now. A file of jobs that cannot be used is in its `failed`, with the reason, and
        stops no other.

    Raises:
        InputError: the jobs cannot be found, the folder holds anything else, or it cannot be written.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "jobs.csv").write_text("job,effective_batch,lr\\na,256,0.1\\nb,250,0.1\\n")
    >>> plans = plan_files(folder / "jobs.csv", [8], folder / "plans", columns=["job", "status"])
    >>> plans.rows, plans.summary.infeasible, plans.failed
    (2, 1, {})
    """
    try:
        from isobatch.fleet.plan_folder import run
    except ModuleNotFoundError:
        raise needs_extra("tables in files", "fleet") from None
    question = query(clusters, columns=columns, profile=profile, select=select, top=top, **settings)
    if not isinstance(jobs, (str, os.PathLike)):
        raise must_be("a path or URL; tables go to plan_fleet", type(jobs), field="jobs")
    return run(question, jobs, output, engine=engine, resume=resume)


def plan_table(
    table: Any,
    clusters: Any = None,
    *,
    columns: Iterable[str] | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    **settings: Any,
) -> Any:
    """Plans an Arrow table: a pure function for mapping tables (Ray Data, Spark's mapInArrow, Dask, DuckDB).

    Args:
        table: a `pyarrow.Table`; each row has a job's columns and, where no clusters are given, its
            cluster's.
        clusters, columns, profile, settings: as in `plan_fleet`.

    Returns:
        A `pyarrow.Table`, a row for each row of the table, or for each of its rows on each cluster, in their
        order. Its schema depends on that of the table, not on what the rows hold.

    Raises:
        InputError: as `plan_fleet`.

    >>> import pyarrow as pa
    >>> hardware = {"nodes": [1, 1], "gpus_per_node": [8, 8]}
    >>> jobs = pa.table({"effective_batch": [256, 250], "lr": [0.1, 0.1], **hardware})
    >>> plan_table(jobs, columns=["status", "micro_batch"]).to_pylist()
    [{'status': 'ok', 'micro_batch': 32}, {'status': 'infeasible', 'micro_batch': None}]
    """
    if not hasattr(table, "__arrow_c_stream__"):
        raise must_be("a pyarrow.Table", type(table), field="table")
    question = query(clusters, columns=columns, profile=profile, **settings)
    return question.fleet(table, numbered=False).plan()
