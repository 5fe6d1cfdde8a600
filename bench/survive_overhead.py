"""What `survivors` adds to a step that nobody disturbs, beside ElasticRun: CPU time of the whole process, by turns, as wall time is noise.

python bench/survive_overhead.py --rounds 7 --width 384
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

MICRO, SAMPLES, WARM = 64, 50_000, 100


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


@contextmanager
def store() -> Iterator[str]:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{served.port}"
    del served


def measured(context: Any, kind: str, width: int, steps: int) -> list[float]:
    """ms a step, the mean of the ranks: CPU of the process, of its main thread, and wall."""
    with store() as address:
        pipes = [context.Pipe() for _ in range(2)]
        processes = [
            context.Process(target=train, args=(kind, width, steps, address, rank, pipes[rank][1]))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        found = [ours.recv() for ours, _ in pipes]
        for process in processes:
            process.join()
    return [statistics.mean(column) for column in zip(*found, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=384)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "isobatch.integrations.torch"])
    rows: dict[str, list[list[float]]] = {"elastic": [], "survivors": []}
    for turn in range(args.rounds):
        for kind in ("elastic", "survivors") if turn % 2 else ("survivors", "elastic"):
            rows[kind].append(measured(context, kind, args.width, args.steps))
            print(
                kind,
                "  ".join(f"{value:.3f}" for value in rows[kind][-1]),
                f"load {os.getloadavg()[0]:.0f}",
                flush=True,
            )
    print("| ms a step | CPU, process | CPU, main thread | wall |\n|---|---|---|---|")
    for name, pick in ("median", statistics.median), ("least", min):
        for kind, found in rows.items():
            print(
                f"| {kind}, {name} | " + " | ".join(f"{pick(c):.3f}" for c in zip(*found, strict=True)) + " |"
            )
    ratios = [
        [s / e - 1 for s, e in zip(a, b, strict=True)]
        for a, b in zip(rows["survivors"], rows["elastic"], strict=True)
    ]
    print(
        "pair by pair, median: "
        + ", ".join(f"{statistics.median(c):+.2%}" for c in zip(*ratios, strict=True))
    )


if __name__ == "__main__":
    main()
