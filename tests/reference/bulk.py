"""A whole plan over arrays, as somebody who knows NumPy well would write it: the opponent of the core in
`bench/`.

It plans the common case: policy keep, grow or a number; rule linear or sqrt by optimizer; lengths in epochs;
torch's way to count an epoch. Memory is reused where that is natural, nothing is computed twice, and no row
is looped over in Python.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[np.generic]]
JOB = ("effective_batch", "lr", "sgd", "gpus", "micro_batch", "dataset_size", "epochs", "warmup_epochs")
"""A job's columns in `plan`: all int64, but lr, epochs and warmup_epochs float64 and sgd bool."""


def cross(jobs: Mapping[str, NDArray[np.generic]], world_size: NDArray[np.int64]) -> Columns:
    """Every job on every cluster, job by job."""
    rows = len(world_size)
    columns: Columns = {name: np.repeat(column, rows) for name, column in jobs.items()}
    columns["world_size"] = np.tile(world_size, len(next(iter(jobs.values()))))
    return columns


def largest_divisor(number: NDArray[np.int64], cap: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """The largest divisor up to the cap, for positive numbers; 1 where the cap is below 1.

    A candidate d that fails leaves d' ≤ min(d − 1, ⌊n / (⌊n/d⌋ + 1)⌋). Only the rows that failed go on.
    """
    out = np.maximum(np.minimum(number, cap), 1)
    rows = np.flatnonzero(number % out)
    n, d = number[rows], out[rows]
    while len(rows):
        d = np.minimum(d - 1, n // (n // d + 1))
        failed = n % d != 0
        out[rows] = d
        rows, n, d = rows[failed], n[failed], d[failed]
    return out


def plan(
    rows: Mapping[str, NDArray], *, policy: str | int = "keep", max_micro_batch: int | None = None
) -> Columns:
    """Plans the rows of `cross`. Result columns are as the core's: −1 or NaN where a row cannot be
    planned.
    """
    tuned, world = rows["effective_batch"], rows["world_size"]
    batch = (
        tuned // rows["gpus"] * world if policy == "grow" else tuned if policy == "keep" else np.int64(policy)
    )
    share, rest = np.divmod(batch, world)
    dataset = rows["dataset_size"]
    feasible = (rest == 0) & (share > 0) & (batch <= dataset)

    share = np.where(feasible, share, 1)
    micro = largest_divisor(share, rows["micro_batch"] if max_micro_batch is None else max_micro_batch)
    accumulation = share // micro
    k = batch / tuned
    scale = np.ones(len(world)) if policy == "keep" else np.where(rows["sgd"], k, np.sqrt(k))

    per_replica = -(-dataset // world)
    batches = -(-per_replica // micro)
    steps_per_epoch = -(-batches // accumulation)
    served = per_replica * world
    total = np.ceil(rows["epochs"] * steps_per_epoch)
    warmup = np.ceil(rows["warmup_epochs"] * steps_per_epoch)

    bad = ~feasible
    out: Columns = {
        "data_parallel": world,
        "micro_batch": micro.astype(np.int32),
        "accumulation": accumulation.astype(np.int32),
        "effective_batch": share * world,
        "batch_change": k - 1,
        "lr": rows["lr"] * scale,
        "lr_scale": scale,
        "warmup_steps": warmup.astype(np.int64),
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total.astype(np.int64),
        "samples_per_epoch": served,
        "padded_samples": served - dataset,
    }
    for name, column in out.items():
        if name != "data_parallel":
            column[bad] = np.nan if column.dtype.kind == "f" else -1
    out["feasible"] = feasible
    return out
