"""Measures the guard in a DDP loop after its first steps, in two ways that noise cannot blur together:

- its own time: the time spent inside of its hooks, over that of the same step;
- the loop's: the guard's hooks are put in and taken out of one and the same loop, in alternating blocks of
  steps, and the blocks are compared pair by pair.

torchrun --standalone --nproc-per-node 2 bench/guard_overhead.py
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import isobatch as ib
from isobatch.guard import guard
from isobatch.guard import loader as noting
from isobatch.integrations.torch import PlanLR

BLOCK, PAIRS, OWN_STEPS = 10, 25, 250
MICRO, SAMPLES = 64, 2_000_000


class Loop:
    """A plain DDP training under guard, a step at a time."""

    def __init__(self, width: int, accumulation: int) -> None:
        recipe = ib.Recipe(
            effective_batch=2 * MICRO * accumulation,
            lr=0.01,
            optimizer="adamw",
            dataset_size=SAMPLES,
            duration="9ep",
            schedule="constant",
            micro_batch=MICRO,
        )
        self.plan = ib.plan(recipe, 2)
        self.model = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = PlanLR(self.optimizer, self.plan)
        data = TensorDataset(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)))
        loader = DataLoader(data, MICRO, sampler=DistributedSampler(data, shuffle=True))
        loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
        watch = guard(self.plan, lambda m, b: cross_entropy(m(b[0]), b[1]))
        watch.attach(self.ddp, self.optimizer, loader)
        self.batches = iter(loader)  # of an epoch that is longer than the measurement
        self.steps = 0
        for _ in range(5):
            self.step()
        places = [self.ddp._forward_pre_hooks, self.optimizer._optimizer_step_pre_hooks]
        parameters: list[Any] = [*self.model.parameters()]
        places += [p._post_accumulate_grad_hooks for p in parameters]
        self.hooks: list[tuple[Any, dict[Any, Any]]] = [(place, dict(place)) for place in places if place]

    def step(self) -> None:
        for index in range(self.plan.accumulation or 1):
            x, y = next(self.batches)
            quiet = index + 1 < (self.plan.accumulation or 1)
            with self.ddp.no_sync() if quiet else contextlib.nullcontext():
                (cross_entropy(self.ddp(x), y) / self.plan.accumulation).backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def switch(self, on: bool) -> None:
        for place, hooks in self.hooks:
            place.clear()
            if on:
                place.update(hooks)

    def block(self) -> tuple[float, float]:
        """Seconds of a median step, by the clock and of the process's CPU."""
        dist.barrier()
        walls, cpus = [], []
        for _ in range(BLOCK):
            begun, cpu = time.perf_counter(), time.process_time()
            self.step()
            walls.append(time.perf_counter() - begun)
            cpus.append(time.process_time() - cpu)
        return statistics.median(walls), statistics.median(cpus)


class Own:
    """Adds up the time inside of the guard's functions."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0

    def timed(self, function: Any) -> Any:
        def call(*args: Any) -> Any:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            result = function(*args)
            self.cpu += time.thread_time_ns() - cpu
            self.wall += time.perf_counter_ns() - wall
            return result

        return call


def own_time(loop: Loop) -> str:
    """The guard's own time: its share of the same step, by the clock and by the CPU time of the thread.

    Both suffer alike from other work of the machine. Steps that compare weights, one for each doubling, are
    apart.
    """
    own, note = Own(), noting.Epoch.note
    for place, hooks in loop.hooks:
        place.update({key: own.timed(hook) for key, hook in hooks.items()})
    noting.Epoch.note = own.timed(note)  # type: ignore[method-assign]
    rows, rare = [], []
    for _ in range(OWN_STEPS):
        own.wall = own.cpu = 0
        begun, cpu = time.perf_counter_ns(), time.thread_time_ns()
        compares = loop.steps.bit_count() == 1
        loop.step()
        step, step_cpu = time.perf_counter_ns() - begun, time.thread_time_ns() - cpu
        if compares:
            rare.append(own.wall / 1e6)
        else:
            rows.append((step / 1e6, own.wall / 1e3, own.wall / step, own.cpu / 1e3, own.cpu / step_cpu))
    noting.Epoch.note = note  # type: ignore[method-assign]
    loop.switch(True)
    step, wall, share, cpu, cpu_share = np.median(rows, axis=0)
    least = np.percentile([row[1] for row in rows], 5)
    return (
        f"step {step:.1f} ms; own {wall:.0f} µs (the quietest 5 %: {least:.0f}), {share:.2%}; CPU {cpu:.0f} "
        f"µs, {cpu_share:.2%}; comparing weights {statistics.median(rare):.1f} ms"
    )


def interval(ratios: list[float]) -> str:
    """The median of pairs, and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return f"{statistics.median(ratios) - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, 2 gloo ranks, {PAIRS} pairs of blocks of {BLOCK} steps")
    for width, accumulation in (256, 1), (1024, 1), (1024, 4):
        torch.manual_seed(0)
        loop = Loop(width, accumulation)
        own_share = own_time(loop)
        pairs: dict[str, list[list[float]]] = {"clock": [[], []], "CPU": [[], []]}
        for pair in range(PAIRS):
            for on in (True, False) if pair % 2 else (False, True):  # neither is always first
                loop.switch(on)
                for seconds, kind in zip(loop.block(), pairs.values(), strict=True):
                    kind[on].append(seconds)
        if dist.get_rank() == 0:
            parameters = sum(p.numel() for p in loop.model.parameters())
            switched = "; ".join(
                f"by {name} {interval([a / b for b, a in zip(*kind, strict=True)])}"
                for name, kind in pairs.items()
            )
            print(
                f"{parameters} parameters, accumulation {accumulation}: {own_share}; "
                f"on against off {switched}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
