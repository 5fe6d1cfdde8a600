"""Training loops as users write them, in the process that calls them.

A bare one on a clock, and one under the guard.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from gpu_tools import plan
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from isobatch.diagnosis.tensors import AUTOCAST, float32_as
from isobatch.guard import guard
from isobatch.integrations.torch import PlanLR
from isobatch.validate import Workload

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process only, over the backend that its device has."""
    with tempfile.TemporaryDirectory() as folder:  # not a file: torch deletes it
        if CUDA:
            torch.cuda.set_device(DEVICE)
        place = f"file://{folder}/store"
        dist.init_process_group("nccl" if CUDA else "gloo", init_method=place, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def free_running(workload: Workload, micro_batch: int, precision: str | None, steps: int) -> dict[str, Any]:
    """A bare DDP loop of one rank as a user writes it, no clock between its steps.

    Seconds of a step, peak memory in bytes.
    """
    model = DistributedDataParallel(workload.model.to(DEVICE), device_ids=[0] if CUDA else None)
    optimizer, dtype = workload.optimizer(model.parameters()), AUTOCAST[precision]
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype == torch.float16)
    batches = [workload.batch(micro_batch, torch.Generator().manual_seed(n), DEVICE) for n in range(2)]

    def step(n: int) -> None:
        with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
            loss = workload.loss(model, batches[n % 2])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    with float32_as("tf32") if precision == "tf32" else nullcontext():
        for n in range(5):
            step(n)
        if CUDA:
            torch.cuda.reset_peak_memory_stats(DEVICE)
            torch.cuda.synchronize(DEVICE)
        begun = time.perf_counter()
        for n in range(steps):
            step(n)
        if CUDA:
            torch.cuda.synchronize(DEVICE)
        took = time.perf_counter() - begun
    peak = torch.cuda.max_memory_allocated(DEVICE) if CUDA else None
    return {"step_seconds": took / steps, "steps": steps, "peak_memory_bytes": peak}


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "autocast bf16": {"precision": "bf16"},
    "GradScaler": {"precision": "fp16"},
    "compile": {"compile": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "wrong loss": {"sum": True},
}


def guarded(
    steps: int, *, precision: str | None = None, compile: bool = False, sum: bool = False, **optimizer: Any
) -> None:
    """Trains one rank under guard."""
    torch.manual_seed(0)
    planned = plan(1, 16, 2, precision)
    data = TensorDataset(torch.randn(3200, 32), torch.randint(10, (3200,)))
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)
    model = DistributedDataParallel(net, device_ids=[0] if CUDA else None)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
    scheduler = PlanLR(adamw, planned)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision or "")
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "fp16")
    watch = guard(planned, loss=lambda m, b: cross_entropy(m(b[0].to(DEVICE)), b[1].to(DEVICE)))
    watch.attach(model, adamw, loader)
    # On a CPU nothing is compiled, only traced: that is what the guard sees of it.
    called = torch.compile(model, backend="inductor" if CUDA else "aot_eager") if compile else model
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    for index, (x, y) in enumerate(loader):
        with nullcontext() if index % 2 else model.no_sync():
            with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
                loss = cross_entropy(called(x.to(DEVICE)), y.to(DEVICE), reduction="sum" if sum else "mean")
            scaler.scale(loss / 2).backward()
        if index % 2:
            scaler.step(adamw)
            scaler.update()
            scheduler.step()
            adamw.zero_grad()
        if index // 2 >= steps:
            return
