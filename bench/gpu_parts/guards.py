"""The guard in loops as they are written for GPUs: autocast, a loss scaler, compile, fused and capturable optimizers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gpu_parts.tools import CUDA, DEVICE, alone, plan
from isobatch.guard import GuardError, guard
from isobatch.integrations.torch import PlanLR

LIMIT_SECONDS = 300
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "autocast bf16": {"precision": "bf16"},
    "GradScaler": {"precision": "fp16"},
    "compile": {"compile": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "wrong loss": {"sum": True},
}


def train(
    steps: int, *, precision: str | None = None, compile: bool = False, sum: bool = False, **optimizer: Any
) -> None:
    """A training of one rank under guard."""
    torch.manual_seed(0)
    planned = plan(1, 16, 2, precision)
    data = TensorDataset(torch.randn(3200, 32), torch.randint(10, (3200,)))
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE),
        device_ids=[0] if CUDA else None,
    )
    made = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
    scheduler, dtype = (
        PlanLR(made, planned),
        {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision or ""),
    )
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "fp16")
    watch = guard(planned, loss=lambda m, b: cross_entropy(m(b[0].to(DEVICE)), b[1].to(DEVICE)))
    watch.attach(model, made, loader)
    # On a CPU nothing is compiled, only traced: that is what the guard sees of it.
    called = torch.compile(model, backend="inductor" if CUDA else "aot_eager") if compile else model
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    for index, (x, y) in enumerate(loader):
        with nullcontext() if index % 2 else model.no_sync():
            with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
                loss = cross_entropy(called(x.to(DEVICE)), y.to(DEVICE), reduction="sum" if sum else "mean")
            scaler.scale(loss / 2).backward()
        if index % 2:
            scaler.step(made)
            scaler.update()
            scheduler.step()
            made.zero_grad()
        if index // 2 >= steps:
            return


def run(small: bool) -> dict[str, Any]:
    """Good loops must pass, the wrong one must not."""
    found: dict[str, Any] = {"wrong": []}
    with alone():
        for name, way in WAYS.items():
            if name == "capturable" and not CUDA:
                found[name] = "not asked: capturable optimizers need CUDA"
                continue
            try:
                train(8 if small else 40, **way)
                found[name] = "no complaint"
            except GuardError as error:
                found[name] = str(error)[:500]
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"[:500]
            if (found[name] == "no complaint") == (name == "wrong loss"):
                found["wrong"].append(f"{name}: {found[name]}")
    return found
