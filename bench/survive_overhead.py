"""What `survivors` adds to a step that nobody disturbs, beside ElasticRun: CPU time of all threads, in blocks by turns of one pair of processes.

python bench/survive_overhead.py --pairs 60 --width 64

What it adds does not depend on the width, and is seen best beside a small step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import isobatch as ib
from isobatch.integrations.torch import ElasticRun, survivors

MICRO, SAMPLES, WARM = 64, 50_000, 40


def crews(
    kind: str, recipe: ib.Recipe, net: nn.Module, optimizer: Any, store: str, rank: int
) -> Iterator[Any]:
    """Yields (run, scheduler, model)."""
    if kind == "survivors":
        for crew in survivors(recipe, net, optimizer, store=store, ranks=2, name=f"r{rank}"):
            yield crew.run, crew.scheduler, crew.wrap(net)
        return
    host, port = store.split(":")
    shared = dist.TCPStore(host, int(port), is_master=False)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=2)
    run = ElasticRun(recipe)
    yield run, run.scheduler(optimizer), DistributedDataParallel(net)
    dist.destroy_process_group()


def train(kind: str, width: int, steps: int, store: str, rank: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    recipe = ib.Recipe(
        effective_batch=2 * MICRO, lr=0.01, optimizer="adamw", dataset_size=SAMPLES, duration=f"{steps}st"
    )
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)))
    begun = (0.0, 0.0, 0.0)
    for run, scheduler, model in crews(kind, recipe, net, optimizer, store, rank):
        for step in run.steps(run.loader(data)):
            if step.number == WARM:
                begun = now()
            for micro in step:
                x, y = micro.batch
                with micro.sync(model):
                    (cross_entropy(model(x), y) * micro.weight).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step.number == steps - 1:
                pipe.send([1e3 * (b - a) / (steps - WARM - 1) for a, b in zip(begun, now(), strict=True)])


def now() -> tuple[float, float, float]:
    return time.process_time(), time.thread_time(), time.perf_counter()


def blocks(rank: int, kinds: list[str], stores: list[str], width: int, steps: int, pipe: Any) -> None:
    """Trains one block after the other."""
    for kind, store in zip(kinds, stores, strict=True):
        train(kind, width, steps, store, rank, pipe)


def measured(kinds: list[str], width: int, steps: int) -> Iterator[list[float]]:
    """Yields each block's ms a step, the mean of the ranks: CPU of the process, of its main thread, and wall."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "isobatch.integrations.torch"])
    hosts = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in kinds]
    stores = [f"127.0.0.1:{host.port}" for host in hosts]
    pipes = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=blocks, args=(rank, kinds, stores, width, steps, pipes[rank][1]))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for _ in kinds:
        yield [statistics.mean(column) for column in zip(*(ours.recv() for ours, _ in pipes), strict=True)]
    for process in processes:  # The stores outlive them.
        process.join()


def interval(values: list[float]) -> tuple[float, float, float]:
    """Returns the median and its 95 % confidence interval, by order statistics: of no distribution."""
    ordered, count = sorted(values), len(values)
    below = max(0, int(count / 2 - 0.98 * count**0.5))
    return statistics.median(ordered), ordered[below], ordered[count - 1 - below]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=60, help="of blocks")
    parser.add_argument("--steps", type=int, default=400, help=f"of a block, of which {WARM} are not counted")
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    order = ["survivors", "elastic", "elastic", "survivors"]
    kinds = (order * args.pairs)[: 2 * args.pairs]
    found = [*measured(kinds, args.width, args.steps)]
    print("| ms a step, median of blocks | CPU, process | CPU, main thread | wall |\n|---|---|---|---|")
    rows = {kind: [row for row, name in zip(found, kinds, strict=True) if name == kind] for kind in order}
    for kind, of_kind in rows.items():
        cells = (f"{statistics.median(column):.3f}" for column in zip(*of_kind, strict=True))
        print(f"| {kind} | {' | '.join(cells)} |")
    pairs = zip(rows["survivors"], rows["elastic"], strict=True)
    added = zip(*([1e3 * (a - b) for a, b in zip(*pair, strict=True)] for pair in pairs), strict=True)
    cells = ("{:+.1f} ({:+.1f} to {:+.1f})".format(*interval([*column])) for column in added)
    print(f"| added, µs: median of {args.pairs} pairs, 95 % interval | {' | '.join(cells)} |")
    print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
