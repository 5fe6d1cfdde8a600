"""What every rank of `bench/calibration.py measure` does: steps of many splits, in turns, and bare all-reduces.

The work of a sample is either real (matrix products) or paced: layers that only wait, so that more ranks than the machine has
cores can compute at once, as GPUs would. Gradients, DDP, its buckets and the wire are real in both. Every time is that of the
slowest rank, and goes with the cores that other work on the machine kept busy. Ranks start each step together.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS = 4
# Paced: seconds of a layer's forward, as constant and per sample; the backward takes twice as long.
PACE = 2e-3, 0.1e-3
# Bytes of the bare all-reduces. Smaller ones pass the limiter of the links in one burst.
SIZES = [1 << power for power in range(17, 23)]


class _Wait(torch.autograd.Function):
    """Passes its input on after some seconds, and its gradient after twice as many."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class _Paced(nn.Module):
    """A layer whose gradient is `width` × `width`, and whose work is one product with one row, and a wait."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waited: torch.Tensor = _Wait.apply(x[:1] @ self.weight, PACE[0] + PACE[1] * len(x))
        return x + waited


def model(kind: str, width: int) -> nn.Module:
    if kind == "paced":
        return nn.Sequential(*(_Paced(width) for _ in range(LAYERS)))
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(LAYERS))
    )


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the slowest rank, and the cores that others kept busy meanwhile."""
    dist.barrier()
    busy, own, begun = _busy(), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    ours = torch.tensor(time.process_time() - own, dtype=torch.float64)
    dist.all_reduce(ours)
    whole = time.perf_counter() - begun
    return float(slowest), max(0.0, (_busy() - busy - float(ours)) / whole)


def _busy() -> float:
    """Seconds that the machine's cores have worked, by the kernel's count: user, nice, system, interrupts."""
    fields = Path("/proc/stat").read_text().split(maxsplit=8)
    return sum(map(int, (*fields[1:4], *fields[6:8]))) / os.sysconf("SC_CLK_TCK")


def run(
    kind: str,
    width: int,
    splits: Sequence[tuple[int, int]],
    spaces: Sequence[str],
    address: str,
    out: Path,
    *,
    alone: bool,
    turns: int,
) -> dict[str, Any]:
    """Measures with one rank in each network namespace; `alone` adds each rank by itself, a step of one GPU."""

    def rank_main(rank: int) -> None:
        _enter(spaces[rank])
        _prefer()
        os.environ |= {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": address, "MASTER_PORT": "29519"}
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=len(spaces))
        found = _measure(kind, width, splits, alone, turns)
        if rank == 0:
            out.write_text(json.dumps(found))
        dist.destroy_process_group()

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=rank_main, args=(rank,)) for rank in range(len(spaces))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"exit codes of the ranks: {[process.exitcode for process in processes]}")
    found: dict[str, Any] = json.loads(out.read_text(), parse_float=lambda text: float(f"{float(text):.3g}"))
    return found


def _prefer() -> None:
    """What else runs on the machine should delay this rank little: a scheduling group of its own, before others."""
    os.setsid()
    os.nice(-15)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-15")


def _enter(space: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", space).open() as file:
        if libc.setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")


def _measure(
    kind: str, width: int, splits: Sequence[tuple[int, int]], alone: bool, turns: int
) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())
    own = model(kind, width)
    ddp = DistributedDataParallel(own, bucket_cap_mb=0.1)  # a bucket a layer
    # A learning rate of 0 does the optimizer's work and leaves the weights: they could fit one batch, with denormal gradients.
    optimizer = torch.optim.SGD(own.parameters(), lr=0.0, momentum=0.9)
    batches = {b: torch.randn(b, width) for b, _ in splits}

    def step(b: int, a: int, module: nn.Module) -> None:
        for micro in range(a):
            # Forward and backward both: DDP looks at it in the forward.
            if module is ddp and micro < a - 1:
                with ddp.no_sync():
                    ddp(batches[b]).square().mean().backward()
            else:
                module(batches[b]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    wire = {size: torch.randn(size // 4) for size in SIZES}
    steps: dict[str, list[tuple[float, float]]] = {}
    reduces: dict[str, list[tuple[float, float]]] = {}
    modules = {dist.get_world_size(): ddp} | ({1: own} if alone else {})
    for module in modules.values():
        for _ in range(2):  # DDP settles its buckets after the first
            step(*splits[0], module)
    pause = 0.0
    for _ in range(turns):
        for gpus, module in modules.items():
            for b, a in splits:
                time.sleep(pause)
                found = timed(lambda b=b, a=a, module=module: step(b, a, module))  # type: ignore[misc]
                # Work that fills the cores leaves them to the others for as long.
                pause = found[0] if kind == "real" else 0.0
                steps.setdefault(f"{gpus}x{b}x{a}", []).append(found)
        for size in SIZES:
            found = timed(lambda size=size: dist.all_reduce(wire[size]))  # type: ignore[misc]
            reduces.setdefault(str(size), []).append(found)
    logged = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return {
        "ranks": dist.get_world_size(),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in own.parameters()),
        "bucket_bytes": [int(size) for size in str(logged["rebuilt_bucket_sizes"]).replace(",", " ").split()],
        "steps": steps,
        "all_reduce": reduces,
    }
