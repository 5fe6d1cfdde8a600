"""What the guard costs at steps of 2 to 200 ms: its hooks put in and taken out of one loop, in alternating blocks."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gpu_parts.tools import CUDA, DEVICE, alone, plan, seconds_of
from isobatch.guard import guard
from isobatch.integrations.torch import PlanLR

LIMIT_SECONDS = 300
SAMPLES = 2_000_000


class Loop:
    """A DDP training of one rank under guard, a step at a time, that does `depth` layers of work."""

    def __init__(self, width: int, depth: int, micro: int) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(16, width), *layers, nn.Linear(width, 10)).to(DEVICE),
            device_ids=[0] if CUDA else None,
        )
        data = TensorDataset(torch.randn(SAMPLES, 16), torch.randint(10, (SAMPLES,)))
        planned = plan(1, micro, dataset_size=SAMPLES)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = PlanLR(self.optimizer, planned)
        loader = DataLoader(data, micro, sampler=DistributedSampler(data))
        watch = guard(planned, lambda m, b: cross_entropy(m(b[0].to(DEVICE)), b[1].to(DEVICE)))
        watch.attach(self.model, self.optimizer, loader)
        loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
        self.batches = iter(loader)
        for _ in range(5):
            self.step()
        places: list[Any] = [self.model._forward_pre_hooks, self.optimizer._optimizer_step_pre_hooks]
        places += [p._post_accumulate_grad_hooks for p in self.model.parameters()]  # type: ignore[attr-defined]
        self.hooks = [(place, dict(place)) for place in places if place]

    def step(self) -> None:
        x, y = next(self.batches)
        cross_entropy(self.model(x.to(DEVICE)), y.to(DEVICE)).backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def switch(self, on: bool) -> None:
        for place, hooks in self.hooks:
            place.clear()
            if on:
                place.update(hooks)


def run(small: bool) -> dict[str, Any]:
    """By size: seconds of a step without the guard, and what it adds, median over pairs of blocks."""
    sizes = [(64, 2, 16)] if small else [(1024, 8, 256), (4096, 12, 512), (8192, 24, 1024), (8192, 24, 4096)]
    pairs, block = (3, 4) if small else (15, 20)
    found: dict[str, Any] = {}
    with alone():
        for width, depth, micro in sizes:
            loop = Loop(width, depth, micro)
            rows: dict[bool, list[float]] = {True: [], False: []}
            for pair in range(pairs):
                for on in (True, False) if pair % 2 else (False, True):
                    loop.switch(on)
                    rows[on].append(
                        seconds_of(lambda loop=loop: [loop.step() for _ in range(block)], 1) / block
                    )
            added = [a / b - 1 for a, b in zip(rows[True], rows[False], strict=True)]
            found[f"{width} × {depth}, micro-batch {micro}"] = {
                "step_seconds": statistics.median(rows[False]),
                "added_share": statistics.median(added),
                "added_shares": added,
            }
    return found
