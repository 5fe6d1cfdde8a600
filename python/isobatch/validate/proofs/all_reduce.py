"""The all-reduce as nccl-tests defines it: every sum right, and the bandwidth against what was expected."""

import statistics
import time
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from isobatch.equivalence.laws import Cause
from isobatch.equivalence.tensors import chunks
from isobatch.planning.plan import Plan
from isobatch.validate.figures import AllReduce, AllReduceRow
from isobatch.validate.options import Options
from isobatch.validate.proofs.memory import free_on_device
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.trial import Claim, Trial

ADDENDS = 64
"""The most ranks with a nonzero element, of 0, 1 or 2: bfloat16 has every whole number up to 256."""

PIECE = 1 << 22
"""Elements compared at once."""

ROW = 1 << 12
"""The least elements of a repeated pattern: short rows would be copied and compared one by one."""


class Pattern:
    """A repeated row of elements with a known sum.

    Each rank has 0, 1, 2 in turn, shifted by the rank; among many ranks, an element is nonzero on only some,
    shifted by the element. So a rank that is left out or counted twice shows in some sum.
    """

    def __init__(self, rank: int, ranks: int, dtype: torch.dtype, device: torch.device) -> None:
        own, whole = values(rank, ranks), sums(ranks)
        times = -(-ROW // len(own))
        self._own, self._sums = (
            torch.from_numpy(np.tile(row, times)).to(device, dtype) for row in (own, whole)
        )

    def fill(self, buffer: Tensor) -> None:
        """Gives a buffer this rank's elements."""
        whole = buffer.numel() // len(self._own) * len(self._own)
        buffer[:whole].view(-1, len(self._own)).copy_(self._own)
        buffer[whole:].copy_(self._own[: buffer.numel() - whole])

    def wrong(self, buffer: Tensor) -> int:
        """Counts the wrong elements of a sum over all ranks."""
        wrong = 0
        whole = buffer.numel() // len(self._sums) * len(self._sums)
        # By pieces, since a comparison takes room, too.
        for piece in chunks(buffer[:whole], max(1, PIECE // len(self._sums)) * len(self._sums)):
            wrong += int((piece.view(-1, len(self._sums)) != self._sums).sum())
        return wrong + int((buffer[whole:] != self._sums[: buffer.numel() - whole]).sum())


def values(rank: int, ranks: int) -> NDArray[np.int64]:
    """Returns a rank's elements, until they repeat."""
    stride = -(-ranks // ADDENDS)
    element = np.arange(3 * stride) + rank
    row: NDArray[np.int64] = np.where(element % stride == 0, element % 3, 0)
    return row


@cache
def sums(ranks: int) -> NDArray[np.int64]:
    """Returns the sums of all ranks' elements."""
    sums = np.zeros_like(values(0, ranks))
    for rank in range(ranks):
        sums += values(rank, ranks)
    return sums


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WARMUP, MIN_SAMPLES, MAX_SAMPLES = 2, 5, 20
ROOM = 0.5  # of the free memory: NCCL takes some for itself
SECONDS = {"quick": 2.0, "usual": 10.0, "full": 45.0}
LARGEST, GPU_LARGEST = {"quick": 24, "usual": 24, "full": 26}, {"quick": 28, "usual": 30, "full": 33}
"""The largest size, as a power of two."""

PLATEAU_BYTES = 4 << 20
"""The least part of a rank in an all-reduce for its bandwidth to be the link's."""


class Size(NamedTuple):
    """One row to measure: number format, bytes, and whether it is one of DDP's buckets."""

    dtype: str
    bytes: int
    bucket: bool = False


def sizes(options: Options, cuda: bool, buckets: list[int]) -> list[Size]:
    """Lists a sweep of sizes and DDP's buckets in float32, and the largest in other formats (`full`: all)."""
    largest = (GPU_LARGEST if cuda else LARGEST)[options.extent]
    stride = 3 if options.extent == "quick" else 2
    sweep = [1 << power for power in range(largest, 9, -stride)][::-1]
    further_sizes = {"quick": [], "usual": sweep[-2:], "full": sweep}[options.extent]
    return [
        *(Size("float32", size) for size in sweep),
        *(Size("float32", size, bucket=True) for size in sorted(set(buckets))),
        *(Size(dtype, size) for dtype in DTYPES if dtype != "float32" for size in further_sizes),
    ]


def measure_size(group: Group, size: Size, seconds: float) -> AllReduceRow:
    """Measures one size, refilling the buffer before each all-reduce and checking it after."""
    dtype = DTYPES[size.dtype]
    elements = max(1, size.bytes // dtype.itemsize)
    pattern = Pattern(group.rank, group.world_size, dtype, group.device)
    buffer = torch.empty(elements, dtype=dtype, device=group.device)
    wrong_elements = 0

    def sample() -> float:
        nonlocal wrong_elements
        pattern.fill(buffer)
        took = group.time(lambda: dist.all_reduce(buffer))
        wrong_elements += pattern.wrong(buffer)
        return took

    samples = group.slowest(group.repeat(sample, seconds, WARMUP, MIN_SAMPLES, MAX_SAMPLES))
    median = statistics.median(samples)
    alg = elements * dtype.itemsize / median / 1e9
    return AllReduceRow(
        dtype=size.dtype,
        bytes=elements * dtype.itemsize,
        ranks=group.world_size,
        nodes=group.nodes,
        bucket=size.bucket,
        time_us=median * 1e6,
        p95_us=float(np.quantile(samples, 0.95)) * 1e6,
        alg_bw_gb_s=alg,
        bus_bw_gb_s=alg * 2 * (group.world_size - 1) / group.world_size,
        wrong_elements=int(group.sum(wrong_elements)),
        samples_us=[sample * 1e6 for sample in samples],
    )


def interpolate(table: list[AllReduceRow], size: int) -> float | None:
    """Returns the seconds of one float32 all-reduce of `size` bytes, or None outside of the table."""
    rows = sorted({row.bytes: row.time_us for row in table if row.dtype == "float32"}.items())
    if not rows or not rows[0][0] <= size <= rows[-1][0]:
        return None
    return float(np.interp(size, [row[0] for row in rows], [row[1] for row in rows])) / 1e6


def measure(group: Group, options: Options, buckets: list[int]) -> tuple[AllReduce, int]:
    """Measures the table, and counts the rows left out for want of time or room."""
    if group.world_size == 1:
        return AllReduce(table=[]), 0
    planned = sizes(options, group.device.type == "cuda", buckets)
    most_bytes = ROOM * min(group.gather(free_on_device(group)))
    fitting = [size for size in planned if size.bytes <= most_bytes]
    whole, begun = SECONDS[options.extent], time.monotonic()
    most = whole + group.limit.total_seconds() / 2
    group.pulse.grant(whole)
    table: list[AllReduceRow] = []
    for size in fitting:
        remaining = most - (time.monotonic() - begun)
        # Estimated by the slowest byte of the sizes at least a quarter as large.
        slowest = max((row.time_us / row.bytes for row in table if 4 * row.bytes >= size.bytes), default=0.0)
        least = slowest * size.bytes * (WARMUP + MIN_SAMPLES) / 1e6
        if group.from_first(least < remaining):
            table.append(measure_size(group, size, whole / len(fitting)))
    return AllReduce(table=table), len(planned) - len(table)


def judge_sums(table: list[AllReduceRow], left_out: int) -> Proof:
    """Judges whether every sum was right."""
    bad = [row for row in table if row.wrong_elements]
    if not bad:
        text = f"no wrong element in {len(table)} sizes and formats"
        if left_out:
            text += f"; {left_out} skipped, which would take too long here or not fit"
        return pass_claim("all_reduce", text, 0)
    text = f"{bad[0].wrong_elements} wrong elements at {bad[0].bytes} bytes of {bad[0].dtype}"
    wrong = sum(row.wrong_elements for row in bad)
    return judge_claim("all_reduce", Verdict.FAIL, text, Cause.WRONG_SUMS.likely(), 0, wrong_elements=wrong)


def expected_gb_s(group: Group, options: Options, plan: Plan) -> float | None:
    """Returns the given bus bandwidth, else on GPUs the cluster's own."""
    if options.bus_gb_s is not None or group.device.type != "cuda":
        return options.bus_gb_s
    return plan.cluster.intra_gb_s if group.nodes == 1 else plan.cluster.inter_gb_s


def judge_bandwidth(
    group: Group, options: Options, table: list[AllReduceRow], expected: float | None
) -> Proof:
    """Judges the bandwidth of the largest size."""
    rows = [row for row in table if row.dtype == "float32"]
    # Not the best size: a rate limit lets a burst pass, so a smaller size can be faster than the link.
    large = max(rows, key=lambda row: row.bytes)
    values = {"bus_bw_gb_s": large.bus_bw_gb_s, "bytes": large.bytes}
    text = f"bus bandwidth {large.bus_bw_gb_s:.3f} GB/s at {large.bytes} bytes over {group.world_size} ranks"
    if group.emulated:
        text += "; emulated, several ranks on a GPU: function only, not performance"
        return skip_claim("bandwidth", text, **values)
    if options.bus_gb_s is None and large.bytes < PLATEAU_BYTES * group.world_size:
        return skip_claim("bandwidth", f"{text}; this size is too small to reach the cluster's", **values)
    if expected is None:
        return skip_claim("bandwidth", f"{text}; no expected bandwidth was given (--bus-gb-s)", **values)
    short = 1 - large.bus_bw_gb_s / expected
    # Noise only slows a sample down: if one was fast enough, the link is not at fault.
    fast = min(large.samples_us) / large.time_us
    verdict, cause = Verdict.by(short, options), Cause.SLOW_LINK
    if short > options.caution >= 1 - (1 - short) / fast:
        verdict, cause = Verdict.INCONCLUSIVE, Cause.NOISY_HOST
    if group.device.type == "cuda" and verdict is not Verdict.PASS:
        verdict = Verdict.CAUTION  # until it is known how much a fabric's routes differ from run to run
    text += f", {expected:g} expected"
    return judge_claim("bandwidth", verdict, text, cause.likely(), options.caution, **values)


def prove(trial: Trial) -> list[Proof]:
    """Measures the table; one rank has none, since there is no wire."""
    trial.allreduce, left_out = measure(trial.group, trial.options, trial.buckets)
    trial.draft.add(allreduce=trial.allreduce)
    table = trial.allreduce.table
    if trial.group.world_size == 1:
        return [skip_claim(name, "one rank: no wire, so no bandwidth") for name in CLAIM.names]
    expected = expected_gb_s(trial.group, trial.options, trial.plan)
    return [judge_sums(table, left_out), judge_bandwidth(trial.group, trial.options, table, expected)]


CLAIM = Claim(phase="all-reduce", names=("all_reduce", "bandwidth"), prove=prove)
