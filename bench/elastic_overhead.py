"""The overhead of ElasticRun.steps over a plain DDP loop, in two ways that noise cannot blur together:

- its own time: the time inside of `steps`, its micro-batches and `run.stopping`, without the loader's, over
that of the same step;
- the loop's: a plain loop and an elastic one train the same model by turns, and their blocks of steps are
compared pair by pair.

torchrun --standalone --nproc-per-node 2 bench/elastic_overhead.py --sizes 256x1
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from guard_overhead import interval
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import isobatch as ib
from isobatch.integrations.torch import ElasticRun, PlanLR

BLOCK, PAIRS, OWN_STEPS = 10, 25, 250
MICRO, SAMPLES = 64, 1_000_000


class Clock:
    """Adds up the time inside of what it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def through(self, items: Any) -> Iterator[Any]:
        items = iter(items)
        while True:
            begun = time.perf_counter()
            item = next(items, self)
            self.seconds += time.perf_counter() - begun
            if item is self:
                return
            yield item


class Timed:
    """A loader whose own time is known."""

    def __init__(self, loader: DataLoader[Any], clock: Clock) -> None:
        self.loader, self.clock, self.batch_sampler = loader, clock, loader.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return self.clock.through(self.loader)


class Loops:
    """The same training as a plain loop and as an elastic one."""

    def __init__(self, width: int, accumulation: int) -> None:
        self.accumulation = accumulation
        self.recipe = ib.Recipe(
            effective_batch=2 * MICRO * accumulation,
            lr=0.01,
            optimizer="adamw",
            dataset_size=SAMPLES,
            duration="9ep",
            schedule="constant",
            micro_batch=MICRO,
        )
        layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        self.ddp = DistributedDataParallel(nn.Sequential(*layers))
        self.data = TensorDataset(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)))
        self.reading, self.whole = Clock(), Clock()

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.ddp.parameters(), lr=0.01)

    def plain(self) -> Iterator[None]:
        optimizer = self._optimizer()
        scheduler = PlanLR(optimizer, ib.plan(self.recipe, 2))
        batches = iter(DataLoader(self.data, MICRO, sampler=DistributedSampler(self.data)))
        while True:
            for index in range(self.accumulation):
                x, y = next(batches)
                with self.ddp.no_sync() if index + 1 < self.accumulation else contextlib.nullcontext():
                    (cross_entropy(self.ddp(x), y) / self.accumulation).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            yield

    def elastic(self, tokens: Callable[[Any], Any] | None) -> Iterator[None]:
        optimizer = self._optimizer()
        run = ElasticRun(self.recipe)
        scheduler = run.scheduler(optimizer)
        loader = Timed(run.loader(self.data), self.reading)
        for step in self.whole.through(run.steps(loader, tokens)):
            for micro in self.whole.through(step):
                x, y = micro.batch
                with micro.sync(self.ddp):
                    (cross_entropy(self.ddp(x), y) * micro.weight).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            begun = time.perf_counter()
            stopping = run.stopping
            self.whole.seconds += time.perf_counter() - begun
            if stopping:
                return
            yield


def block(loop: Iterator[None]) -> float:
    """Seconds of a median step."""
    dist.barrier()
    seconds = []
    for _ in range(BLOCK):
        begun = time.perf_counter()
        next(loop)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def own_time(loops: Loops, loop: Iterator[None]) -> str:
    """The median of what `steps` takes itself, and its share of the same step."""
    rows = []
    for _ in range(OWN_STEPS):
        loops.whole.seconds = loops.reading.seconds = 0.0
        begun = time.perf_counter()
        next(loop)
        step = time.perf_counter() - begun
        own = loops.whole.seconds - loops.reading.seconds
        rows.append((step * 1e3, own * 1e6, own / step))
    step, own, share = np.median(rows, axis=0)
    # Not every step agrees, but each block has some that do; the median, since other programs move a mean.
    blocks = np.array(rows[: len(rows) // BLOCK * BLOCK]).reshape(-1, BLOCK, 3).sum(axis=1)
    whole = float(np.median(blocks[:, 1] / blocks[:, 0])) / 1e3
    least = np.percentile([row[1] for row in rows], 5)
    return (
        f"step {step:.1f} ms; own {own:.0f} µs (the quietest 5 %: {least:.0f}), {share:.2%} of the median "
        f"step, {whole:.2%} of the median {BLOCK} steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", default=["256x1", "1024x1", "1024x4"], help="widths of layers × accumulation"
    )
    sizes = [tuple(map(int, size.split("x"))) for size in parser.parse_args().sizes]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, 2 gloo ranks, {PAIRS} pairs of blocks of {BLOCK} steps")
    for width, accumulation in sizes:
        for tokens in (None, lambda batch: len(batch[1])):
            torch.manual_seed(0)
            loops = Loops(width, accumulation)
            plain, elastic = loops.plain(), loops.elastic(tokens)
            block(plain), block(elastic)
            own = own_time(loops, elastic)
            ratios = []
            for pair in range(PAIRS):
                both = (plain, elastic) if pair % 2 else (elastic, plain)  # neither is always first
                times = {loop: block(loop) for loop in both}
                ratios.append(times[elastic] / times[plain])
            if dist.get_rank() == 0:
                parameters = sum(p.numel() for p in loops.ddp.parameters())
                kind = "by samples" if tokens is None else "by tokens"
                print(
                    f"{parameters:,} parameters, accumulation {accumulation}, {kind}: {own}; elastic against "
                    f"plain {interval(ratios)}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
