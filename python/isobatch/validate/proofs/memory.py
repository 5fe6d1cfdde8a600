"""A step's memory: its peak, the largest micro-batch that fits, and the room for other proofs."""

import contextlib
import ctypes
import gc
import sys
import threading
import time
from pathlib import Path

import torch

from isobatch.equivalence.laws import Cause
from isobatch.equivalence.tensors import free_on_gpu
from isobatch.errors import first_line
from isobatch.validate.figures import MicroBatchSearch, MicroBatchTry
from isobatch.validate.memory import MIN_RESERVE_BYTES, RESERVE
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim
from isobatch.validate.training import Training
from isobatch.validate.trial import Claim, Trial
from isobatch.validate.workload import out_of_memory
from isobatch.words import few

MAX_TRIES = 48  # 24 doublings and as many halvings of the rest: more than any memory needs
SAMPLE_SECONDS = 0.001
SLACK_BYTES = 1 << 24  # two counts of the memory may differ by so little
SECONDS = {"quick": 10.0, "usual": 30.0, "full": 60.0}


def free_on_device(group: Group) -> int:
    """Counts the bytes left to this rank: free or idle on its GPU, else its share of its host's memory."""
    if group.device.type == "cuda":
        return free_on_gpu(group.device)
    return free_on_host() // sum(rank.node == group.node for rank in group.roster)


def free_on_host() -> int:
    """Counts the bytes left on this host, or in this container."""
    free = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: there is no limit
        files = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
        limit, current = (int(file.read_text()) for file in files)
        free.append(limit - current)
    return min(free, default=1 << 62)


class PeakMemory:
    """The peak memory of a block of work on this rank; on CUDA also `reserved`, and `free` on the GPU."""

    reserved: int | None = None
    free: int | None = None
    _sampler: "_Sampler | None" = None

    def __init__(self, group: Group) -> None:
        self._group, self.bytes = group, 0
        self.kind = "cuda_allocated" if group.device.type == "cuda" else "resident"

    def over_ranks(self) -> None:
        """Makes the figures those of the fullest rank, on all ranks."""
        figures = self._group.gather((self.bytes, self.reserved, self.free))
        peaks, reserved, free = zip(*figures, strict=True)
        self.bytes = max(peaks)
        if self.reserved is not None:
            self.reserved, self.free = max(reserved), min(free)

    def __enter__(self) -> "PeakMemory":
        if self.kind == "resident":
            with contextlib.suppress(OSError, AttributeError):  # glibc has it
                # The C library gives back freed memory: else each size would have the largest one's peak.
                ctypes.CDLL(None).malloc_trim(0)
            self._sampler = None if _reset_peak() else _Sampler()
        else:
            torch.cuda.reset_peak_memory_stats(self._group.device)
        return self

    def __exit__(self, *_: object) -> None:
        if self.kind == "resident":
            self.bytes = _resident("VmHWM:") if self._sampler is None else self._sampler.stop()
            return
        device = self._group.device
        self.bytes = torch.cuda.max_memory_allocated(device)
        self.reserved = torch.cuda.max_memory_reserved(device)
        free, now = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        self.free = int(free) + now - self.reserved


def _reset_peak() -> bool:
    """Restarts the system's count of the peak, and tells whether it did: some containers forbid it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return _resident("VmHWM:") <= _resident("VmRSS:") + SLACK_BYTES


class _Sampler:
    """Samples the process's memory, where the system only counts the peak of the process's whole life."""

    def __init__(self) -> None:
        self._peak, self._end = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="isobatch-memory", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, _resident("VmRSS:"))

    def stop(self) -> int:
        """Ends the sampling, and returns the peak, bytes."""
        self._end.set()
        self._thread.join()
        return max(self._peak, _resident("VmRSS:"))


def _resident(name: str) -> int:
    """Returns the process's memory, bytes, by Linux's count of this name; else the most it ever had."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0  # the validator is refused there
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def limit_bytes(training: Training) -> int | None:
    """Returns a rank's memory limit, where one was given."""
    gib = training.options.memory_limit_gib
    return None if gib is None else round(gib * 2**30)


def attempt(training: Training, n: int) -> MicroBatchTry:
    """Takes a step of one micro-batch of `n` samples on every rank alone; it fits if it fits on all."""
    group, limit = training.group, limit_bytes(training)
    fault = None
    with PeakMemory(group) as memory:
        try:
            training.lone_step(n)
        except (RuntimeError, MemoryError) as error:
            full = out_of_memory(error)
            if not full and (n <= training.micro_batch or not _device_works(group)):
                raise
            # Beyond the planned size, a kernel's failure means that the size does not fit, unless the
            # device is broken for good.
            fault = "out of memory" if full else first_line(error)
    training.model.zero_grad(set_to_none=True)
    if fault is not None:
        gc.collect()  # the error's traceback held the step's tensors
    if group.device.type == "cuda":
        torch.cuda.empty_cache()  # or this size's fragmentation would count against the next
    peak = memory.bytes if memory.reserved is None else memory.reserved
    if fault is None and limit is not None and peak > limit:
        fault = f"{peak / 2**30:.3g} GiB, above the limit of {limit / 2**30:.3g} GiB"
    trials = group.gather((fault, peak - memory.bytes))
    faults = [f"{group.pulse.who(rank)}: {fault}" for rank, (fault, _) in enumerate(trials) if fault]
    memory.over_ranks()
    return MicroBatchTry(
        micro_batch=n,
        fits=not faults,
        fault=few(faults) or None,
        peak_memory_bytes=memory.bytes,
        peak_memory_reserved_bytes=memory.reserved,
        fragmentation_bytes=None if memory.reserved is None else max(idle for _, idle in trials),
        left_bytes=memory.free,
        peak_memory_kind=memory.kind,
    )


def _device_works(group: Group) -> bool:
    """Tells whether a device still computes: after an illegal access or a failed assertion CUDA does not."""
    try:
        return float(torch.ones(1, device=group.device)) == 1.0
    except RuntimeError:
        return False


def recommended(tries: list[MicroBatchTry], reserve: int) -> int | None:
    """Finds the largest micro-batch with the reserve free, interpolated between two tried sizes."""
    fitting = sorted((size for size in tries if size.fits), key=lambda size: size.micro_batch)
    roomy = [size for size in fitting if size.left_bytes is None or size.left_bytes >= reserve]
    if not roomy:
        return None
    best = roomy[-1]
    tight = next((size for size in fitting if size.micro_batch > best.micro_batch), None)
    if tight is None or tight.left_bytes is None or best.left_bytes is None:
        return best.micro_batch
    share = (best.left_bytes - reserve) / (best.left_bytes - tight.left_bytes)
    return best.micro_batch + int(share * (tight.micro_batch - best.micro_batch))


def search(training: Training, ceiling: int | None = None) -> MicroBatchSearch:
    """Searches for the largest fitting micro-batch below `ceiling`: doubles or halves, then bisects."""
    group, begun = training.group, time.monotonic()
    seconds = min(SECONDS[training.options.extent], group.limit.total_seconds() / 2)
    tries: list[MicroBatchTry] = []
    fits, fails = 0, ceiling
    n = training.micro_batch if ceiling is None else ceiling // 2
    while n > fits and len(tries) < MAX_TRIES and group.from_first(time.monotonic() - begun < seconds):
        tries.append(attempt(training, n))
        if tries[-1].fits:
            fits = n
        else:
            fails = n
        n = 2 * fits if fails is None else (fits + fails) // 2
    reserve = 0
    if group.device.type == "cuda":
        reserve = max(MIN_RESERVE_BYTES, int(RESERVE * torch.cuda.mem_get_info(group.device)[1]))
    return MicroBatchSearch(
        largest_micro_batch=fits or None,
        recommended_micro_batch=recommended(tries, reserve),
        complete=fails is not None and fails <= fits + 1,
        memory_limit_bytes=limit_bytes(training),
        tries=sorted(tries, key=lambda size: size.micro_batch),
    )


def prove_fits(training: Training) -> list[Proof]:
    """Returns a failed proof if the planned micro-batch does not fit; else the timed step has its memory."""
    planned = attempt(training, training.micro_batch)
    if planned.fits:
        return []
    largest = search(training, ceiling=training.micro_batch).largest_micro_batch
    fit = "not even one sample fits" if largest is None else f"{largest} fit"
    text = f"micro-batch {training.micro_batch}: {planned.fault}; {fit}"
    values = {"largest_micro_batch": largest, "peak_memory_bytes": planned.peak_memory_bytes}
    return [judge_claim("memory", Verdict.FAIL, text, Cause.OUT_OF_MEMORY.likely(), **values)]


def prove(trial: Trial) -> list[Proof]:
    """Takes a step of the planned micro-batch."""
    with trial.training.weights_kept():
        return prove_fits(trial.training)


def prove_search(trial: Trial) -> list[Proof]:
    """Searches for the largest micro-batch, on all ranks alike."""
    with trial.training.weights_kept():
        result = search(trial.training)
    trial.draft.add(micro_batch_search=result)
    largest, best = result.largest_micro_batch, result.recommended_micro_batch
    if largest is None:  # noise: the planned micro-batch has fitted before
        text = f"nothing fits below micro-batch {result.tries[-1].micro_batch}"
        return [judge_claim("micro_batch", Verdict.FAIL, text, Cause.OUT_OF_MEMORY.likely())]
    trial.largest = largest
    tried = next(size for size in result.tries if size.micro_batch == largest)
    text = "" if result.complete else "at least "
    text += f"{largest} samples fit, {tried.peak_memory_bytes / 2**30:.3g} GiB"
    if tried.fragmentation_bytes is not None:
        text += f", {tried.fragmentation_bytes / 2**30:.3g} GiB of the allocator's lie idle"
    if best is None:
        text += "; no size that was tried leaves the GPU a reserve"
    elif best != largest:
        text += f"; {best} recommended, to leave a reserve for NCCL and fragmentation"
    text += f"; {trial.training.micro_batch} planned, {len(result.tries)} sizes tried"
    values = {"largest_micro_batch": largest, "recommended_micro_batch": best, "complete": result.complete}
    return [pass_claim("micro_batch", text, **values)]


CLAIM = Claim(phase="memory", names=("memory",), prove=prove, decisive=True)
SEARCH = Claim(
    phase="micro-batch",
    names=("micro_batch",),
    prove=prove_search,
    enabled=lambda options: options.find_micro_batch,
)
