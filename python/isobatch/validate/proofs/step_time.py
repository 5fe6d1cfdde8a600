"""The time of the plan's step, alone and with its all-reduce; time and memory against their forecasts."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from isobatch.equivalence.laws import Cause
from isobatch.forecast.measurements import AllReduceRecord, Measurements, StepRecord
from isobatch.validate.figures import AllReduce, Machine, MicroBatchTimes, StepTimes
from isobatch.validate.proofs.all_reduce import interpolate
from isobatch.validate.proofs.machine import judge_windows
from isobatch.validate.proofs.memory import PeakMemory
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.training import Training
from isobatch.validate.trial import Claim, Trial
from isobatch.validate.workload import out_of_memory

DISCARDED = 3  # DDP rebuilds its buckets after the first step
MIN_SAMPLES, MAX_SAMPLES, ROUNDS = 2, 200, 6
BLOCK, BLOCKS, SHORT_SECONDS = 20, 3, 0.02
"""Free-running steps in a block, and blocks, of steps so short that waiting for a clock is a part of them."""
MIN_BLOCK = 5
TRIED = 3  # for each size of the micro-batch: either of two would move their median
HALVINGS = 4  # of the micro-batch
HOST_NOISE_SECONDS = 0.02
"""Added to each rank's step on CPUs: for seconds, another program takes such a share of a processor."""
SECONDS = {"quick": 1.5, "usual": 13.5, "full": 67.5}
"""For the whole phase, unless the least number of steps takes longer."""
FREE_SHARE, SIZES_SHARE = 1 / 3, 2 / 9
"""The most of the phase for free-running steps, and for all sizes of the micro-batch."""


def _samples(group: Group, work: Callable[[], None], seconds: float, least: int = MIN_SAMPLES) -> list[float]:
    """Times some work on this rank, started by all ranks together and repeated for about `seconds`."""
    return group.repeat(lambda: group.time(work), seconds, 0, least, MAX_SAMPLES)


def spread(samples: list[float]) -> float:
    """Computes half the distance between the quartiles over the median: the host's noise in a figure."""
    low, high = np.quantile(samples, [0.25, 0.75])
    return float((high - low) / 2 / statistics.median(samples))


def micro_batch_table(works: "Works", seconds: float, largest: int) -> list[MicroBatchTimes]:
    """Measures time and memory of a step of one micro-batch, at the planned, smaller and largest size."""
    training = works.training
    group = training.group
    halvings = 2 if training.options.extent == "quick" else HALVINGS
    sizes = sorted({max(1, training.micro_batch >> shift) for shift in range(halvings)} | {largest})
    rows = []
    for n in sizes:
        if not works.take(n):
            continue
        half = seconds / len(sizes) / 2
        with PeakMemory(group) as memory:
            timed = group.slowest(_samples(group, works.small, half, TRIED))
            free = free_running(group, works.small, statistics.median(timed), half)
        memory.over_ranks()
        rows.append(
            MicroBatchTimes(
                micro_batch=n,
                step_seconds=free or timed,
                peak_memory_bytes=memory.bytes,
                peak_memory_reserved_bytes=memory.reserved,
                peak_memory_kind=memory.kind,
            )
        )
    return rows


class _Times(NamedTuple):
    """Seconds of this rank's steps (without communication, with the all-reduce, whole), and peak memory."""

    alone: list[float]
    reduced: list[float]
    whole: list[float]
    memory: PeakMemory


class Works:
    """The timed parts of a step: `alone` computes, `reduced` adds the all-reduce, `whole` the optimizer."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._small: list[Any] = []
        self._optimizer, self._scaler = training.still_optimizer(), training.scaler()
        self._batches = training.few_in_turn(1)
        weights = training.weights(self._batches)
        # Both leave the gradients in place.
        formats: Any = {"scaler": self._scaler, "dtype": training.dtype}
        self.reduced = partial(training.backward, self._batches, weights, **formats)
        self.alone = partial(self.reduced, sync=False)

    def whole(self) -> None:
        """Takes the whole step, with the optimizer's."""
        self.reduced()
        self.training.step(self._optimizer, self._scaler)
        self.clear()

    def take(self, n: int) -> bool:
        """Makes `small` a step of one micro-batch of `n` samples, and tells whether it fits on all ranks."""
        group, fits = self.training.group, True
        self._small.clear()
        self._batches.clear()
        try:
            self._small = [self.training.samples(n, 1, group.rank, 0)]
            self.small()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            fits = False
        if not fits:  # after the handler: the error's traceback holds the step's tensors
            self._small.clear()
            self.clear()
        return all(group.gather(fits))

    def small(self) -> None:
        """Takes a step of one micro-batch, by this rank alone."""
        training = self.training
        training.backward(self._small, [1.0], sync=False, scaler=self._scaler, dtype=training.dtype)
        training.step(self._optimizer, self._scaler)
        self.clear()

    def clear(self) -> None:
        """Frees the gradients."""
        self._optimizer.zero_grad(set_to_none=True)


def _times(group: Group, works: Works, seconds: float, free_seconds: float) -> _Times:
    """Times the parts of a step in rounds, for a drift of the host's speed to affect all alike."""
    for _ in range(DISCARDED):
        took = group.time(works.whole)
    took = max(group.slowest([took]))  # all ranks must go on alike
    # At most this many steps are taken however slow they are: a slow step is no lost rank.
    group.pulse.grant(took * (3 * MIN_SAMPLES + (1 + TRIED) * (HALVINGS + 1)))
    seconds -= min(free_seconds, BLOCKS * BLOCK * took) if took <= SHORT_SECONDS else 0.0
    begun = time.monotonic()
    times = _Times([], [], [], PeakMemory(group))
    parts = (works.alone, times.alone), (works.reduced, times.reduced), (works.whole, times.whole)
    with times.memory:
        for _ in range(ROUNDS):
            for work, samples in parts:
                samples += _samples(group, work, seconds / 3 / ROUNDS)
                works.clear()
            if group.from_first(time.monotonic() - begun > seconds):
                break
    return times


def free_running(group: Group, work: Callable[[], None], took: float, seconds: float) -> list[float]:
    """Times blocks without a clock between repetitions; none if `took`, equal on all ranks, is long."""
    if took > SHORT_SECONDS:
        return []
    count = min(BLOCK, max(MIN_BLOCK, int(seconds / BLOCKS / took)))

    def block() -> None:
        for _ in range(count):
            work()

    return group.slowest([group.time(block) / count for _ in range(BLOCKS)])


def measure(trial: Trial) -> tuple[StepTimes, PeakMemory, list[float]]:
    """Measures times and memory over all ranks, and this rank's own steps without communication."""
    training, group, buckets = trial.timed, trial.group, trial.buckets
    seconds = SECONDS[trial.options.extent]
    training.model.train()
    works = Works(training)
    times = _times(group, works, seconds * (1 - SIZES_SHARE), seconds * FREE_SHARE)
    times.memory.over_ranks()
    slow_alone, slow_reduced = group.slowest(times.alone), group.slowest(times.reduced)
    slowest = group.slowest(times.whole)
    exposed = statistics.median(slow_reduced) - statistics.median(slow_alone)
    # The time of all buckets' all-reduces, by a table that may not reach that far.
    parts = [interpolate(trial.allreduce.table, size) for size in buckets]
    communication = None if not parts or None in parts else sum(filter(None, parts))
    noise = spread(slow_reduced) * statistics.median(slow_reduced)
    median = statistics.median(slowest)
    free = free_running(group, works.whole, median, seconds * FREE_SHARE)
    with training.weights_kept():
        micro_batches = micro_batch_table(works, seconds * SIZES_SHARE, trial.largest)
    # A micro-batch that is left out would have been one more without communication.
    whole = statistics.median(free) if free else median
    counts = [max(map(len, shortened.sizes)) for shortened in (training, trial.training)]
    missing = (counts[1] - counts[0]) * statistics.median(slow_alone) / counts[0]
    step = StepTimes(
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
        compute_median_seconds=statistics.median(slow_alone),
        sync_median_seconds=median,
        sync_p95_seconds=float(np.quantile(slowest, 0.95)),
        free_running_seconds=whole if free else None,
        spread=spread(slowest),
        exposed_seconds=exposed,
        communication_seconds=communication,
        overlap=1 - exposed / communication if communication is not None and communication > noise else None,
        samples_per_second=trial.training.batch / (whole + missing),
        planned_accumulation=counts[1],
        planned_step_seconds=whole + missing,
        micro_batches=micro_batches,
    )
    return step, times.memory, times.alone


def judge_ranks(training: Training, own: list[float]) -> Proof:
    """Compares the ranks' own steps without communication: one may be slow in loading or in its loss."""
    group, name = training.group, "rank_steps"
    if group.world_size == 1 or group.emulated:
        return skip_claim(name, "one rank, or several on a GPU: nothing to compare")
    if len(set(map(sum, training.sizes))) > 1:
        return skip_claim(name, "the ranks have different numbers of samples")
    rows = np.array(group.gather(own))
    if group.device.type != "cuda":
        rows += HOST_NOISE_SECONDS
    proof = judge_windows(group, rows, name, "step without communication")
    # Few steps on a host with other programs say little: `ranks` looks closer.
    return skip_claim(name, proof.text, **proof.values) if proof.verdict is Verdict.INCONCLUSIVE else proof


def judge_time(training: Training, step: StepTimes) -> Proof:
    """Judges the step's time by its forecast."""
    options, ranks, planned = training.options, training.group.world_size, training.plan.data_parallel
    expected = options.step_seconds
    if expected is None and not training.workload.stand_in:
        expected = training.plan.step_seconds
    text = (
        f"{step.planned_step_seconds:.4g} s a step, {step.samples_per_second:.4g} samples/s, median of "
        f"{len(step.sync_seconds)} steps, spread {step.spread:.0%}"
    )
    if step.accumulation < step.planned_accumulation:
        timed = f"{step.accumulation} of {step.planned_accumulation} micro-batches timed"
        text += f" ({timed}, the others by arithmetic)"
    values = {"step_seconds": step.planned_step_seconds, "spread": step.spread}
    why = None if expected else "no forecast of this workload (--step-seconds)"
    if training.group.emulated:
        why = "emulated, several ranks on a GPU: function only, not performance"
    if ranks != planned:
        why = f"rehearsal {ranks}/{planned}"
    if why is not None or expected is None:
        return skip_claim("step_time", f"{text}; {why}", **values)
    off = step.planned_step_seconds / expected - 1
    text += f", {expected:.4g} s forecast ({off:+.0%})"
    verdict, cause = Verdict.by(abs(off), options), Cause.SLOWER_STEP if off > 0 else Cause.FASTER_STEP
    if abs(off) > options.caution and step.spread > abs(off) - options.caution:
        verdict, cause = Verdict.INCONCLUSIVE, Cause.NOISY_HOST
    return judge_claim("step_time", verdict, text, cause.likely(), options.caution, **values)


def judge_memory(training: Training, peak: PeakMemory) -> Proof:
    """Judges the peak memory by its forecast, and reports the GPU's free memory."""
    options, expected = training.options, training.options.memory_gib
    if expected is None and not training.workload.stand_in:
        expected = training.plan.memory_gib
    gib = peak.bytes / 2**30
    text = f"{gib:.3g} GiB ({peak.kind}) at micro-batch {training.micro_batch}"
    values = {"peak_memory_bytes": peak.bytes}
    if peak.free is not None:
        text += f", {peak.free / 2**30:.3g} GiB of the GPU left"
        values["left_bytes"] = peak.free
    if expected is None:
        return pass_claim("memory", f"fits: {text}; no forecast of this workload (--memory-gib)", **values)
    off = gib / expected - 1
    text += f", {expected:.3g} GiB forecast ({off:+.0%})"
    verdict, likely = Verdict.by(off, options), Cause.MORE_MEMORY.likely()
    return judge_claim("memory", verdict, text, likely, options.caution, **values)


def measurements(machine: Machine, step: StepTimes, allreduce: AllReduce) -> Measurements | None:
    """Returns the figures as a calibration reads them: the slowest rank's; None if ranks share a GPU."""
    if machine.emulated:
        return None
    per_node, free = max(1, step.ranks // step.nodes), step.free_running_seconds
    alone = [
        StepRecord(
            gpus=1,
            gpus_per_node=1,
            micro_batch=row.micro_batch,
            accumulation=1,
            step_seconds=tuple(row.step_seconds),
            memory_gib=row.peak_memory_bytes / 2**30,
        )
        for row in step.micro_batches
    ]
    together = StepRecord(
        gpus=step.ranks,
        gpus_per_node=per_node,
        micro_batch=step.micro_batch,
        accumulation=step.accumulation,
        step_seconds=tuple(step.sync_seconds if free is None else [free]),
    )
    return Measurements(
        gradient_bytes=step.gradient_bytes,
        bucket_bytes=tuple(map(float, step.bucket_bytes)),
        steps=(*alone, together) if step.ranks > 1 else tuple(alone),
        all_reduce=tuple(
            AllReduceRecord(
                gpus=row.ranks,
                gpus_per_node=per_node,
                bytes=row.bytes,
                seconds=tuple(sample / 1e6 for sample in row.samples_us),
            )
            for row in allreduce.table
            if row.dtype == "float32"
        ),
        workload=step.workload,
        gpu=machine.ranks[0].device,
    )


def prove(trial: Trial) -> list[Proof]:
    """Times the step, compares the ranks' own times, and finds the step's peak memory."""
    step, peak, own = measure(trial)
    trial.measurements = measurements(trial.machine, step, trial.allreduce)
    trial.draft.add(step=step, measurements=trial.measurements)
    return [judge_ranks(trial.timed, own), judge_time(trial.timed, step), judge_memory(trial.timed, peak)]


CLAIM = Claim(phase="step time", names=("rank_steps", "step_time", "memory"), prove=prove)
