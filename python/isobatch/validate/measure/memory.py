"""What a step needs of memory: its peak, and the largest micro-batch that fits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import threading
import time
from pathlib import Path

import torch

from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import MicroBatchSearch, MicroBatchTry
from isobatch.validate.step.training import Training, out_of_memory

TRIES = 48  # 24 doublings and as many halvings of the rest: more than any memory needs
SAMPLE_SECONDS = 0.001
SLACK = 1 << 24  # bytes that two counts of the memory may differ by
SECONDS = {"quick": 10.0, "usual": 30.0, "full": 60.0}


class PeakMemory:
    """The peak memory of a block of work on this rank: `bytes`, `reserved` (CUDA only) and `kind`."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.kind = "cuda_allocated" if group.device.type == "cuda" else "resident"
        self.bytes = 0
        self.reserved: int | None = None
        self._sampler: _Sampler | None = None

    def __enter__(self) -> PeakMemory:
        if self.kind == "resident":
            _trim()
            self._sampler = None if _reset_peak() else _Sampler()
        else:
            torch.cuda.reset_peak_memory_stats(self._group.device)
        return self

    def __exit__(self, *_: object) -> None:
        if self.kind == "resident":
            self.bytes = _peak_resident() if self._sampler is None else self._sampler.stop()
        else:
            self.bytes = torch.cuda.max_memory_allocated(self._group.device)
            self.reserved = torch.cuda.max_memory_reserved(self._group.device)


def _trim() -> None:
    """Gives back what the C library keeps of freed memory: else every size is at the largest one's peak."""
    with contextlib.suppress(OSError, AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> bool:
    """Whether the system's own count of the peak begins anew; some containers do not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _peak_resident() <= _resident() + SLACK


class _Sampler:
    """Looks at the process's memory all the time, where the system's count of its peak is of the process's whole life."""

    def __init__(self) -> None:
        self._peak, self._end = _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="isobatch-memory", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, _resident())

    def stop(self) -> int:
        """The peak, bytes."""
        self._end.set()
        self._thread.join()
        return max(self._peak, _resident())


def _resident() -> int:
    """The process's memory now, bytes."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _peak_resident() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_bytes(training: Training) -> int | None:
    """The memory that a rank may take, where one was given."""
    gib = training.options.memory_limit_gib
    return None if gib is None else round(gib * 2**30)


def attempt(training: Training, n: int) -> MicroBatchTry:
    """A step of one micro-batch of `n` samples, with its optimizer, on every rank alone, and whether it fits on all."""
    group, limit = training.group, limit_bytes(training)
    fault = None
    with PeakMemory(group) as memory:
        try:
            training.lone_step(n)
        except (RuntimeError, MemoryError) as error:
            full = out_of_memory(error)
            if not full and n <= training.micro_batch:
                raise
            # Beyond the plan, a size that a kernel cannot do is one that does not fit.
            fault = (
                "out of memory" if full else f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            )
    training.model.zero_grad(set_to_none=True)
    if fault is not None:
        gc.collect()  # the error's traceback has held what the step had made
    if group.device.type == "cuda":
        torch.cuda.empty_cache()  # the next size must not be judged by what this one has fragmented
    taken = memory.bytes if memory.reserved is None else memory.reserved
    if fault is None and limit is not None and taken > limit:
        fault = f"{taken / 2**30:.3g} GiB, above the limit of {limit / 2**30:.3g} GiB"
    found = group.gather((fault, memory.bytes, memory.reserved))
    faults = [f"{group.pulse.who(rank)}: {fault}" for rank, (fault, _, _) in enumerate(found) if fault]
    reserved = [taken for _, _, taken in found if taken is not None]
    return MicroBatchTry(
        micro_batch=n,
        fits=not faults,
        fault=few(faults) or None,
        peak_memory_bytes=max(peak for _, peak, _ in found),
        peak_memory_reserved_bytes=max(reserved, default=None),
        fragmentation_bytes=max(
            (taken - peak for _, peak, taken in found if taken is not None), default=None
        ),
        peak_memory_kind=memory.kind,
    )


def search(training: Training, ceiling: int | None = None) -> MicroBatchSearch:
    """The largest micro-batch that fits: from the planned one, doubling while it fits or halving until it does, then
    halving the distance between what fits and what does not. All ranks go through the same sizes.

    Args:
        ceiling: a size that is known not to fit; None: there is none.
    """
    group, begun = training.group, time.monotonic()
    seconds = min(SECONDS[training.options.extent], group.limit.total_seconds() / 2)
    tries: list[MicroBatchTry] = []
    fits, fails = 0, ceiling
    n = training.micro_batch if ceiling is None else ceiling // 2
    while n > fits and len(tries) < TRIES and group.from_first(time.monotonic() - begun < seconds):
        tries.append(attempt(training, n))
        if tries[-1].fits:
            fits = n
        else:
            fails = n
        if fails is None:
            n = 2 * fits
        elif fits == 0:
            n = fails // 2
        else:
            n = (fits + fails) // 2
    return MicroBatchSearch(
        largest_micro_batch=fits or None,
        complete=fails is not None and fails <= fits + 1,
        memory_limit_bytes=limit_bytes(training),
        tries=sorted(tries, key=lambda one: one.micro_batch),
    )
