"""What `survivors` adds to a step that nobody disturbs, beside ElasticRun: processor time, in turns of ten steps in the same processes.

python bench/survive_overhead.py --turns 300 [--shards] [--busy 50]

What it adds does not depend on the width, and is seen best beside a small step. ElasticRun has plain gloo groups of its own, in the world of
the crew. The pulse's thread beats in the turns of both, so it has a clock of its own, and counts by its share of a step of 6 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import cycle, islice, pairwise, permutations
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import isobatch as ib
from isobatch.integrations.torch import ElasticRun, survivors

MICRO, SAMPLES, TURN, WARM = 64, 50_000, 10, 5
STEP = 6e-3


def shard(net: nn.Module, mesh: DeviceMesh) -> None:
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)


def crews(kind: str, recipe: ib.Recipe, net: nn.Module, optimizer: Any, args: Any) -> Iterator[Any]:
    """Yields (run, scheduler, model)."""
    if kind == "survivors":
        sharded = {"shard": shard, "shards": args.shards} if args.shards > 1 else {}
        settings = {"store": args.store, "ranks": args.ranks, "name": f"r{args.rank}", **sharded}
        for crew in survivors(recipe, net, optimizer, **settings):
            with crew:
                yield crew.run, crew.scheduler, crew.wrap(net)
        return
    run = ElasticRun(recipe)
    if args.shards == 1:
        model = DistributedDataParallel(net, process_group=dist.new_group(backend="gloo"))
        yield run, run.scheduler(optimizer), model
        return
    ranks = torch.arange(args.ranks).view(-1, args.shards)
    row, column = divmod(args.rank, args.shards)
    groups = [
        dist.new_group(members, backend="gloo", use_local_synchronization=True)
        for members in (ranks[:, column].tolist(), ranks[row].tolist())
    ]
    shard(net, DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard")))
    optimizer.param_groups[0]["params"] = [*net.parameters()]
    yield run, run.scheduler(optimizer), net


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def training(kind: str, args: Any) -> Iterator[None]:
    """Takes a step each time that it is asked."""
    torch.manual_seed(1)
    steps = TURN * (args.turns + WARM)
    recipe = ib.Recipe(
        effective_batch=args.ranks * MICRO,
        lr=0.01,
        optimizer="adamw",
        dataset_size=SAMPLES,
        duration=f"{steps}st",
    )
    widths = (64, args.width, args.width, 10)
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)))
    for run, scheduler, model in crews(kind, recipe, net, optimizer, args):
        for step in run.steps(run.loader(data, equal_passes=args.shards > 1)):
            for micro in step:
                x, y = micro.batch
                with micro.sync(model):
                    (cross_entropy(model(x), y) * micro.weight).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if kind == "busy":
                spin(1e-6 * args.busy)
            yield


def take_turns(rank: int, args: Any, pipe: Any) -> None:
    """Sends each turn's µs a step, by kind: of the main thread, of the others but the pulse, and by the wall; then the pulse's share."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})  # Else a busy loop of 50 µs is seen as 30 to 85.
    args.rank = rank
    order = ["survivors", "elastic", *["busy"] * (args.busy > 0)]
    trainings = {}
    for kind in order:  # The first forms the world.
        trainings[kind] = training(kind, args)
        next(trainings[kind])
    pulse = next(thread for thread in threading.enumerate() if thread.name == "isobatch pulse")
    clock = time.pthread_getcpuclockid(pulse.ident)

    def now() -> tuple[float, ...]:
        main, beats = time.thread_time(), time.clock_gettime(clock)
        return main, time.process_time() - main - beats, time.perf_counter(), beats

    for kind in order:
        for _ in range(TURN * WARM - 1):
            next(trainings[kind])
    turns, begun = [], now()
    for kinds in islice(cycle(permutations(order)), args.turns):
        found = {}
        for kind in kinds:
            before = now()
            for _ in range(TURN):
                next(trainings[kind])
            found[kind] = [1e6 * (b - a) / TURN for a, b in zip(before, now(), strict=True)][:3]
        turns.append(found)
    ended = now()
    pipe.send((turns, (ended[3] - begun[3]) / (ended[2] - begun[2])))
    for kind in order[::-1]:
        for _ in trainings[kind]:
            raise RuntimeError(f"{kind} has steps left")


def measured(args: Any) -> tuple[dict[str, list[list[float]]], float]:
    """Returns each kind's turns, and the pulse's share of the time: means of the ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "isobatch.integrations.torch"])
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    args.store = f"127.0.0.1:{host.port}"
    pipes = [context.Pipe(duplex=False) for _ in range(args.ranks)]
    processes = [
        context.Process(target=take_turns, args=(rank, args, pipe)) for rank, (_, pipe) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, pipe in pipes:
        pipe.close()
    every = [ours.recv() for ours, _ in pipes]
    for process in processes:  # The store outlives them.
        process.join()
    turns = [
        {
            kind: [statistics.mean(one) for one in zip(*(rank[kind] for rank in ranks), strict=True)]
            for kind in ranks[0]
        }
        for ranks in zip(*(turns for turns, _ in every), strict=True)
    ]
    share = statistics.mean(share for _, share in every)
    return {kind: [turn[kind] for turn in turns] for kind in turns[0]}, share


def interval(values: list[float]) -> str:
    """Says the median and its 95 % confidence interval, by order statistics: of no distribution."""
    ordered, count = sorted(values), len(values)
    below = max(0, int(count / 2 - 0.98 * count**0.5))
    return f"{statistics.median(ordered):+.1f} ({ordered[below]:+.1f} to {ordered[count - 1 - below]:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=300, help=f"of each kind, of {TURN} steps")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--shards", action="store_const", const=2, default=1, help="HSDP: 2 replicas of 2")
    parser.add_argument("--busy", type=float, default=0.0, help="µs that a third kind adds, to be found")
    args = parser.parse_args()
    args.ranks = 2 * args.shards
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kinds, share = measured(args)
    print("| µs a step | main thread | gloo's threads | all, with the pulse | wall |\n|---|---|---|---|---|")
    beside, pulse = kinds["elastic"], 1e6 * STEP * share
    for kind, turns in kinds.items():
        beats = pulse if kind == "survivors" else 0.0
        rows = [(main, others, main + others + beats, wall) for main, others, wall in turns]
        cells = [f"{statistics.median(column):.0f}" for column in zip(*rows, strict=True)]
        print(f"| {kind} | {' | '.join(cells)} |")
        if kind != "elastic":
            plain = [(main, others, main + others, wall) for main, others, wall in beside]
            added = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(rows, plain, strict=True)]
            cells = [interval([*column]) for column in zip(*added, strict=True)]
            print(f"| added, median of {args.turns} turns, 95 % interval | {' | '.join(cells)} |")
    load = os.getloadavg()[0]
    print(f"the pulse: {pulse:.1f} µs in {1e3 * STEP:.0f} ms; load {load:.1f}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
