"""The map of jobs × clusters by status; of many, in bands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isobatch.fleet.results import STATUS
from isobatch.report.page import Grid
from isobatch.report.plans import INFEASIBLE, Plans
from isobatch.words import count, counted, percent

_MOST_ROWS, _MOST_COLUMNS = 60, 40
_SIGNS = {"ok": "✓", "caution": "!", "infeasible": "×", "none": ""}


def grid_of(plans: Plans) -> Grid | None:
    """Each job's status on each cluster, or of many the share that is feasible; None where the table does not name both."""
    if "job" not in plans.texts or "cluster" not in plans.texts or not plans.rows:
        return None
    job, jobs = _in_order(*plans.text("job"))
    cluster, clusters = _in_order(*plans.text("cluster"))
    if len(jobs) <= _MOST_ROWS and len(clusters) <= _MOST_COLUMNS:
        return _each(plans, jobs, job, clusters, cluster)
    return _bands(plans, jobs, job, clusters, cluster)


def _in_order(names: list[str | None], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Each row's name by its number, and the names, in the order in which they come."""
    _, first, inverse = np.unique(at, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[inverse], [names[at[row]] or "(none)" for row in first[order]]


def _each(
    plans: Plans, jobs: list[str], job: NDArray[np.int64], clusters: list[str], cluster: NDArray[np.int64]
) -> Grid:
    codes = np.full((len(jobs), len(clusters)), -1)
    # Of several rows of one pair the worst counts.
    np.maximum.at(codes, (job, cluster), plans.status)
    gpus = np.full(codes.shape, np.nan)
    gpus[job, cluster] = plans.number("world_size")
    names = [*STATUS.tolist(), "none"]

    def cell(row: int, column: int) -> tuple[str, str, str]:
        kind = names[codes[row, column]]
        many = gpus[row, column]
        where = f" ({counted(int(many), 'GPU')})" if many == many else ""
        return kind, _SIGNS[kind], f"{jobs[row]} on {clusters[column]}{where}: {kind}"

    rows = [(name, [cell(row, column) for column in range(len(clusters))]) for row, name in enumerate(jobs)]
    caption = "Status of each job on each cluster: ✓ ok, ! with warnings, × infeasible"
    if not plans.compares:
        caption += "; an empty cell has no row in this table"
    return Grid(caption, "job", clusters, rows)


def _bands(
    plans: Plans, jobs: list[str], job: NDArray[np.int64], clusters: list[str], cluster: NDArray[np.int64]
) -> Grid:
    row, row_names = _banded(jobs, job, _MOST_ROWS)
    column, column_names = _banded(clusters, cluster, _MOST_COLUMNS)
    shape = len(row_names), len(column_names)
    total, good = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(total, (row, column), 1)
    np.add.at(good, (row, column), plans.status != INFEASIBLE)

    def cell(at: tuple[int, int]) -> tuple[str, str, str]:
        if not total[at]:
            return "none", "", "no row"
        share = good[at] / total[at]
        kind = "ok" if share >= 0.9 else "caution" if share >= 0.5 else "infeasible"
        return (
            kind,
            f"{100 * share:.0f}",
            f"{count(good[at])} of {count(total[at])} rows feasible ({percent(share)})",
        )

    rows = [(name, [cell((i, j)) for j in range(shape[1])]) for i, name in enumerate(row_names)]
    caption = (
        f"Feasible rows in percent, {count(len(jobs))} jobs × {count(len(clusters))} clusters in bands in the table's order: "
        "green from 90 %, yellow from 50 %"
    )
    return Grid(caption, "jobs", column_names, rows)


def _banded(names: list[str], at: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], list[str]]:
    if len(names) <= most:
        return at, names
    size = -(-len(names) // most)
    starts = range(0, len(names), size)
    return at // size, [f"{names[i]} … {names[min(i + size, len(names)) - 1]}" for i in starts]
