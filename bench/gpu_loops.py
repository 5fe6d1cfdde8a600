"""Times a bare training loop and a bare all-reduce in the calling process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from isobatch.diagnosis.tensors import AUTOCAST, float32_as
from isobatch.validate import Workload

DEVICE = torch.device("cuda", 0)


@contextmanager
def alone() -> Iterator[None]:
    """Has an NCCL group of this process only."""
    with tempfile.TemporaryDirectory() as folder:  # Not a file: torch deletes it.
        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def free_running(
    workload: Workload, micro_batch: int, precision: str | None, seconds: float
) -> dict[str, Any]:
    """Trains by a bare DDP loop of one rank, without a clock between its steps.

    Returns seconds of a step, the number of steps in about `seconds`, and peak memory in bytes.
    """
    model = DistributedDataParallel(workload.model.to(DEVICE), device_ids=[0])
    optimizer, dtype = workload.optimizer(model.parameters()), AUTOCAST[precision]
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    batches = [workload.batch(micro_batch, torch.Generator().manual_seed(n), DEVICE) for n in range(2)]

    def run(steps: int) -> float:
        begun = time.perf_counter()
        for n in range(steps):
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = workload.loss(model, batches[n % 2])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(DEVICE)
        return time.perf_counter() - begun

    with float32_as("tf32") if precision == "tf32" else nullcontext():
        run(5)
        torch.cuda.reset_peak_memory_stats(DEVICE)
        steps = max(5, min(200, round(5 * seconds / run(5))))
        took = run(steps)
    peak = torch.cuda.max_memory_allocated(DEVICE)
    return {"step_seconds": took / steps, "steps": steps, "peak_memory_bytes": peak}


def all_reduce_speed(mebibytes: int) -> float:
    """Returns GB/s of an all-reduce among this process alone: what NCCL takes without a wire."""
    values, begun = torch.ones(mebibytes << 18, device=DEVICE), 0.0
    for repeats in (3, 20):
        torch.cuda.synchronize(DEVICE)
        begun = time.perf_counter()
        for _ in range(repeats):
            dist.all_reduce(values)
    torch.cuda.synchronize(DEVICE)
    return values.nbytes * 20 / (time.perf_counter() - begun) / 1e9
