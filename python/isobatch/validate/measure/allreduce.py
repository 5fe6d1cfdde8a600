"""All-reduce as nccl-tests defines it: sizes of a sweep and of the plan's own buckets, each result checked."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
import torch.distributed as dist

from isobatch.validate.measure.pattern import Pattern
from isobatch.validate.options import Options
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import AllReduce, AllReduceRow, Fit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WARMUP, LEAST, MOST = 2, 5, 20
CHAIN = {"isolated": 1, "back_to_back": 5}
SECONDS = {"quick": 2.0, "usual": 10.0, "full": 45.0}


def _row(group: Group, name: str, size: int, mode: str, bucket: bool, seconds: float) -> AllReduceRow:
    """One size: a sample is one all-reduce, or the mean of several back to back."""
    dtype = DTYPES[name]
    elements = max(1, size // dtype.itemsize)
    pattern = Pattern(group.rank, group.world_size, dtype, group.device)
    buffer = torch.empty(elements, dtype=dtype, device=group.device)
    chain = CHAIN[mode]
    wrong_elements = 0

    def reduce() -> None:
        for _ in range(chain):
            dist.all_reduce(buffer)

    def sample() -> float:
        nonlocal wrong_elements
        pattern.fill(buffer)
        took = group.time(reduce) / chain
        # A chain sums sums, which are not exact for long: its result is checked by the isolated rows.
        if chain == 1:
            wrong_elements += pattern.wrong(buffer)
        return took

    samples = group.repeat(sample, seconds, WARMUP, LEAST, MOST)
    samples = group.slowest(samples)
    median = statistics.median(samples)
    alg = elements * dtype.itemsize / median / 1e9
    return AllReduceRow(
        dtype=name,
        bytes=elements * dtype.itemsize,
        ranks=group.world_size,
        nodes=group.nodes,
        mode=mode,
        bucket=bucket,
        time_us=median * 1e6,
        p95_us=float(np.quantile(samples, 0.95)) * 1e6,
        alg_bw_gb_s=alg,
        bus_bw_gb_s=alg * 2 * (group.world_size - 1) / group.world_size,
        wrong_elements=int(group.sum(wrong_elements)) if chain == 1 else None,
        samples_us=[sample * 1e6 for sample in samples],
    )


def fit(rows: list[AllReduceRow]) -> Fit:
    """α and β from 0 with the least squares of relative errors, and how far the table is from them."""
    times = np.array([row.time_us for row in rows])
    sizes = np.array([float(row.bytes) for row in rows])
    terms = np.stack([1 / times, sizes / times], axis=1)
    best = np.linalg.lstsq(terms, np.ones(len(rows)))[0]
    if best.min() < 0:  # then the best of those from 0 lies on an edge: one of the two is 0
        edges = np.diag(terms.sum(axis=0) / np.square(terms).sum(axis=0))
        best = min(edges, key=lambda edge: float(np.square(terms @ edge - 1).sum()))
    residuals = np.abs(terms @ best - 1)
    return Fit(
        dtype=rows[0].dtype,
        mode=rows[0].mode,
        alpha_us=float(best[0]),
        us_per_byte=float(best[1]),
        median_residual=float(np.median(residuals)),
        worst_residual=float(residuals.max()),
    )


def interpolate(table: list[AllReduceRow], size: int) -> float | None:
    """Seconds of one isolated float32 all-reduce of `size` bytes, between the table's rows; None outside of them."""
    rows = sorted(
        {row.bytes: row.time_us for row in table if row.dtype == "float32" and row.mode == "isolated"}.items()
    )
    if not rows or not rows[0][0] <= size <= rows[-1][0]:
        return None
    return float(np.interp(size, [row[0] for row in rows], [row[1] for row in rows])) / 1e6


def _jobs(options: Options, cuda: bool, buckets: list[int]) -> list[tuple[str, int, str, bool]]:
    """What to measure: number format, bytes, mode, and whether it is one of DDP's buckets."""
    largest = {"quick": 24, "usual": 24, "full": 26}[options.extent] + 4 * cuda
    stride = 3 if options.extent == "quick" else 2
    sweep = [1 << power for power in range(largest, 9, -stride)][::-1]
    jobs = [("float32", size, "isolated", False) for size in sweep]
    jobs += [("float32", size, "isolated", True) for size in sorted(set(buckets))]
    if options.extent == "usual":  # the largest sizes tell the formats and the pipeline apart
        jobs += [("float32", size, "back_to_back", False) for size in sweep[-3:]]
        jobs += [(name, size, "isolated", False) for name in ("bfloat16", "float16") for size in sweep[-2:]]
    elif options.extent == "full":
        jobs += [("float32", size, "back_to_back", True) for size in sorted(set(buckets))]
        jobs += [
            (name, size, mode, False)
            for name in DTYPES
            for mode in ("isolated", "back_to_back")
            for size in sweep
            if (name, mode) != ("float32", "isolated")
        ]
    return jobs


def measure(group: Group, options: Options, buckets: list[int]) -> tuple[AllReduce, int]:
    """The table and its fits; and how many of its rows were left out, which would have taken too long here."""
    if group.world_size == 1:
        return AllReduce(table=[], fits=[]), 0
    jobs = _jobs(options, group.device.type == "cuda", buckets)
    seconds, begun = SECONDS[options.extent] / len(jobs), time.monotonic()
    most = SECONDS[options.extent] + group.limit.total_seconds() / 2
    group.pulse.grant(SECONDS[options.extent])
    table: list[AllReduceRow] = []
    for name, size, mode, bucket in jobs:
        left = most - (time.monotonic() - begun)
        if not group.from_first(_least_seconds(table, size, mode) < left):
            continue
        table.append(_row(group, name, size, mode, bucket, seconds))
    kinds = dict.fromkeys((row.dtype, row.mode) for row in table)
    fits = [fit([row for row in table if (row.dtype, row.mode) == kind]) for kind in kinds]
    return AllReduce(table=table, fits=fits), len(jobs) - len(table)


def _least_seconds(table: list[AllReduceRow], size: int, mode: str) -> float:
    """How long the shortest measurement of a size will take, by the slowest byte of those at least a quarter as large."""
    slowest = max((row.time_us / row.bytes for row in table if 4 * row.bytes >= size), default=0.0)
    return slowest * size * (WARMUP + LEAST) * CHAIN[mode] / 1e6
