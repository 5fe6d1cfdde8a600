"""How long the plan's step takes: alone, with its all-reduce, and how much of that is hidden; and the memory it needs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from isobatch.validate.measure import windows
from isobatch.validate.measure.allreduce import interpolate
from isobatch.validate.measure.enough import LATE, PRECISION, ROUGHLY, uncertainty
from isobatch.validate.measure.memory import PeakMemory
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import AllReduceRow, MicroBatch, Step, Times
from isobatch.validate.step.training import Training, out_of_memory

DISCARD = 3  # DDP rebuilds its buckets after the first step
LEAST, MOST = 2, 200
ROUNDS = 6
BLOCK, BLOCKS, SHORT_SECONDS = 20, 3, 0.02
"""Steps that run freely one after the other, where one takes less than that: waiting for a clock is then a part of it."""
LEAST_BLOCK = 5
HALVINGS = 4
STEP_SECONDS = {"quick": 0.15, "usual": 0.6, "full": 3.0}
"""The longest step that is timed as a whole: some thirty are taken at least."""
SECONDS = {"quick": 2.0, "usual": 13.5, "full": 67.5}
"""Of the whole phase, unless a step is so slow that the least number of them takes longer, or the host so noisy that it takes more."""
FREE_SHARE = 1 / 3
SIZES_SHARE = {"quick": 1 / 3, "usual": 2 / 9, "full": 2 / 9}
WINDOW_SHARE = {"quick": 1 / 30, "usual": 1 / 45, "full": 1 / 45}
"""Of the phase at most: steps that run freely, all sizes of the micro-batch, and each window in which the ranks are compared."""


def window_seconds(extent: str) -> float:
    """Of each window in which the ranks' own steps are compared."""
    return SECONDS[extent] * WINDOW_SHARE[extent]


def _samples(group: Group, work: Callable[[], None], seconds: float, within: float = 0.0) -> list[float]:
    """This rank's seconds of some work that all ranks start together, repeated for about so long, or until the median is known."""
    return group.repeat(lambda: group.time(work), seconds, 0, LEAST, MOST, within)


def spread(samples: list[float]) -> float:
    """Half the distance between the quartiles over the median: what the host's noise makes of a figure."""
    low, high = np.quantile(samples, [0.25, 0.75])
    return float((high - low) / 2 / statistics.median(samples))


def of_ranks(group: Group, samples: list[float]) -> Times:
    """What each rank's samples come to: all of them would be too much to gather from many ranks."""
    mine = statistics.median(samples), float(np.quantile(samples, 0.95)), max(samples)
    median, p95, most = (list(values) for values in zip(*group.gather(mine), strict=True))
    return Times(median_seconds=median, p95_seconds=p95, max_seconds=most)


def micro_batch_table(works: Works, seconds: float, largest: int) -> list[MicroBatch]:
    """Time and memory of a step of one micro-batch, as planned, smaller, and the largest that fits, each rank alone: what a
    forecast is made of. A size that no longer fits, beside what the validation holds itself, is left out."""
    training = works.training
    group = training.group
    halvings = 2 if training.options.extent == "quick" else HALVINGS
    sizes = sorted({max(1, training.micro_batch >> shift) for shift in range(halvings)} | {largest})
    rows = []
    for n in sizes:
        if not works.take(n):
            continue
        with PeakMemory(group) as memory:
            within = PRECISION[training.options.extent]
            samples = _samples(group, works.small, seconds / len(sizes), within)
        peaks = group.gather((memory.bytes, memory.reserved))
        rows.append(
            MicroBatch(
                micro_batch=n,
                step_seconds=group.slowest(samples),
                ranks=of_ranks(group, samples),
                peak_memory_bytes=max(peak for peak, _ in peaks),
                peak_memory_reserved_bytes=max(r for _, r in peaks) if memory.reserved is not None else None,
                peak_memory_kind=memory.kind,
            )
        )
    return rows


def micro_batch_seconds(training: Training, dtype: torch.dtype | None = None) -> float:
    """How long forward and backward of one micro-batch take rank 0 alone, in the plan's format or in `dtype`, which the model has: the
    second time, since the first also sets things up. The same on all ranks."""
    group, took = training.group, 0.0
    training.model.train()  # as the training does it, which was seen to fit
    with training.weights_kept():
        for _ in range(2 if group.rank == 0 else 0):
            group.sync()
            begun = time.perf_counter()
            batch = training.samples(training.micro_batch, 0, 0, 0, dtype)
            training.lone_backward(batch, 1.0, training.dtype if dtype is None else None)
            del batch
            group.sync()
            took = time.perf_counter() - begun
        training.model.zero_grad(set_to_none=True)
    return cast(float, group.from_first(took))


def affordable(training: Training, one: float) -> Training:
    """The training with as many micro-batches a step as can be timed often enough, where one takes `one` seconds."""
    return training.shortened(int(STEP_SECONDS[training.options.extent] / one))


def bucket_bytes(training: Training) -> list[int]:
    """The sizes of DDP's buckets, which it settles after the first step."""
    training.model.train()
    batches = training.few_in_turn(1)
    weights = training.weights(batches)
    for _ in range(2):
        training.backward(batches, weights, dtype=training.dtype)
        training.model.zero_grad(set_to_none=True)
    data = training.ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    text = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
    return [int(size) for size in text.replace(",", " ").split()]


class _Times(NamedTuple):
    """Seconds of this rank's steps: without communication, with the all-reduce, and whole; and the peak memory."""

    alone: list[float]
    reduced: list[float]
    whole: list[float]
    memory: PeakMemory


class Works:
    """What of a step is timed: its computation `alone`, `reduced` with the all-reduce, and `whole` with the optimizer; and a `small`
    one of a single micro-batch. There is one optimizer for all of them, as in the training."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._small: list[Any] = []
        self._optimizer, self._scaler = training.still_optimizer(), training.scaler()
        self.prepare()

    def prepare(self) -> None:
        """Makes the step's micro-batches, before anything is timed: `take` frees them."""
        self._small.clear()
        self._batches = self.training.few_in_turn(1)
        self._weights = self.training.weights(self._batches)

    def _backward(self, *, sync: bool) -> None:
        training = self.training
        training.backward(self._batches, self._weights, sync=sync, scaler=self._scaler, dtype=training.dtype)

    def alone(self) -> None:
        """Without communication. The gradients stay."""
        self._backward(sync=False)

    def reduced(self) -> None:
        """With the all-reduce. The gradients stay."""
        self._backward(sync=True)

    def whole(self) -> None:
        """With the optimizer's step."""
        self._backward(sync=True)
        self.training.step(self._optimizer, self._scaler)
        self.clear()

    def alone_again(self) -> None:
        """As `alone`, any number of times."""
        self.alone()
        self.clear()

    def take(self, n: int) -> bool:
        """Makes `small` a step of one micro-batch of `n` samples, and tries it. Whether it fits on all ranks."""
        training, fault = self.training, None
        self._small.clear()
        self._batches.clear()
        try:
            self._small = [training.samples(n, 1, training.group.rank, 0)]
            self.small()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            fault = str(error)
        if fault is not None:
            self._small.clear()
            self.clear()
        return not any(other is not None for other in training.group.gather(fault))

    def small(self) -> None:
        """One micro-batch and the optimizer's step, by this rank alone."""
        training = self.training
        training.backward(self._small, [1.0], sync=False, scaler=self._scaler, dtype=training.dtype)
        training.step(self._optimizer, self._scaler)
        self.clear()

    def clear(self) -> None:
        """Frees the gradients."""
        self._optimizer.zero_grad(set_to_none=True)


def _times(
    group: Group, works: Works, seconds: float, free_seconds: float, within: float, late: float
) -> _Times:
    """Times the parts of a step in rounds, so that a drift of the host's speed affects all alike, until each part's median is known
    or the time is over.

    Args:
        seconds: for all of it; as many as steps will run freely for, `free_seconds` at most, are left of them.
        within: how well medians are to be known; 0: all of the time is used.
        late: how many times as long it may take where they are not even known roughly.
    """
    for _ in range(DISCARD):
        took = group.time(works.whole)
    took = max(group.slowest([took]))  # what follows must be the same on all ranks
    # Some of what follows is done however long it takes, at most this many steps: a slow step is no lost rank.
    group.pulse.grant(took * (3 * LEAST + windows.FIRST + 3 * (HALVINGS + 1)))
    seconds -= min(free_seconds, BLOCKS * BLOCK * took) if took <= SHORT_SECONDS else 0.0
    begun = time.monotonic()
    found = _Times([], [], [], PeakMemory(group))
    parts = (works.alone, found.alone), (works.reduced, found.reduced), (works.whole, found.whole)
    with found.memory:
        while True:
            for work, samples in parts:
                samples += _samples(group, work, seconds / 3 / ROUNDS)
                works.clear()
            passed = time.monotonic() - begun if group.rank == 0 else 0.0
            known = max(uncertainty(samples) for _, samples in parts)
            passed, known = group.slowest([passed, known])
            over = passed >= seconds and (known <= ROUGHLY or passed >= late * seconds)
            if known <= within or over:
                break
    return found


def _free_running(group: Group, works: Works, step: float, seconds: float) -> float | None:
    """Seconds of a step, median of blocks in which no step waits for a clock, which take about `seconds` together at most; None where a
    step takes so long that it does not matter. Equal on all ranks, as `step` must be."""
    if step > SHORT_SECONDS:
        return None
    count = min(BLOCK, max(LEAST_BLOCK, int(seconds / BLOCKS / step)))

    def block() -> None:
        for _ in range(count):
            works.whole()

    return statistics.median(group.slowest([group.time(block) / count for _ in range(BLOCKS)]))


class Peak(NamedTuple):
    """The largest rank's peak memory in a step, of which kind it is, and what was left of the fullest GPU."""

    bytes: int
    kind: str
    left: int | None


def measure(
    training: Training,
    planned: Training,
    table: list[AllReduceRow],
    buckets: list[int],
    largest: int,
    *,
    judged: bool,
) -> tuple[Step, Peak, Works]:
    """The step's times and memory. `planned` has all of the plan's micro-batches; a noisy host gets more time where it is `judged`."""
    group, extent = training.group, training.options.extent
    seconds, within = SECONDS[extent], PRECISION[extent]
    sizes, free_most = SIZES_SHARE[extent] * seconds, FREE_SHARE * seconds
    training.model.train()
    training.ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
    works = Works(training)
    parts = seconds - sizes - windows.FIRST * window_seconds(extent)
    times = _times(group, works, parts, free_most, within, LATE if judged and within else 1.0)
    peaks = group.gather((times.memory.bytes, times.memory.left))
    peak = Peak(
        bytes=max(taken for taken, _ in peaks),
        kind=times.memory.kind,
        left=min((left for _, left in peaks if left is not None), default=None),
    )
    slow_alone, slow_reduced = group.slowest(times.alone), group.slowest(times.reduced)
    slowest = group.slowest(times.whole)
    exposed = statistics.median(slow_reduced) - statistics.median(slow_alone)
    communication, noise = _communication(table, buckets), spread(slow_reduced)
    telling = communication is not None and communication > noise * statistics.median(slow_reduced)
    median = statistics.median(slowest)
    free = _free_running(group, works, median, free_most)
    data = training.ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    with training.weights_kept():
        micro_batches = micro_batch_table(works, sizes, largest)
    # A micro-batch that is left out would have been one more without communication.
    whole = median if free is None else free
    counts = [max(map(len, one.sizes)) for one in (training, planned)]
    missing = (counts[1] - counts[0]) * statistics.median(slow_alone) / counts[0]
    step = Step(
        workload=training.options.workload,
        parameters=sum(p.numel() for p in training.model.parameters()),
        ranks=group.world_size,
        nodes=group.nodes,
        micro_batch=training.micro_batch,
        accumulation=counts[0],
        precision=training.plan.recipe.precision or "fp32",
        gradient_bytes=sum(buckets),
        bucket_bytes=buckets,
        compute_seconds=slow_alone,
        sync_seconds=slowest,
        compute_ranks=of_ranks(group, times.alone),
        sync_ranks=of_ranks(group, times.whole),
        compute_median_seconds=statistics.median(slow_alone),
        sync_median_seconds=median,
        sync_p95_seconds=float(np.quantile(slowest, 0.95)),
        free_running_seconds=free,
        spread=spread(slowest),
        exposed_seconds=exposed,
        communication_seconds=communication,
        overlap=1 - exposed / communication if telling and communication else None,
        samples_per_second=planned.batch / (whole + missing),
        planned_accumulation=counts[1],
        planned_step_seconds=whole + missing,
        micro_batches=micro_batches,
        ddp={name: data[name] for name in _telling(data)},
        compiled=training.options.compile,
        channels_last=training.options.channels_last,
    )
    return step, peak, works


def _communication(table: list[AllReduceRow], buckets: list[int]) -> float | None:
    """Seconds of the all-reduces of all buckets, by the table; None where it does not reach that far."""
    parts = [interpolate(table, size) for size in buckets]
    return None if not parts or None in parts else sum(part for part in parts if part is not None)


def _telling(data: Iterable[str]) -> list[str]:
    """What of DDP's own figures goes into the report."""
    prefixes = "avg_", "bucket", "rebuilt"
    return sorted(name for name in data if name.startswith(prefixes) or name in ("world_size", "comm_hook"))
