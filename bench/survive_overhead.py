"""The overhead of `survivors` in an undisturbed step, beside ElasticRun: processor time, ten steps a turn.

python bench/survive_overhead.py --turns 300 [--shards] [--busy 50]

Both run in the same processes. The overhead does not depend on the width, and is seen best beside a small
step. ElasticRun has plain gloo groups of its own, in the world of the crew. The pulse's thread beats in the
turns of both, so it has a clock of its own, and counts by its share of a step of 6 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from itertools import cycle, islice, pairwise, permutations
from typing import Any

import numpy as np
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
STEP = 6000.0


def shard(net: nn.Module, mesh: DeviceMesh) -> None:
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)


def crews(kind: str, recipe: ib.Recipe, net: nn.Module, optimizer: Any, args: Any) -> Iterator[Any]:
    """Yields (run, scheduler, model)."""
    if kind == "survivors":
        settings = {"shard": shard, "shards": args.shards} if args.shards > 1 else {}
        names = {"store": args.store, "ranks": args.ranks, "name": f"r{args.rank}"}
        for crew in survivors(recipe, net, optimizer, **names, **settings):
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


def training(kind: str, args: Any) -> Iterator[None]:
    """Takes a step each time that it is asked."""
    torch.manual_seed(1)
    sizes = {"effective_batch": args.ranks * MICRO, "dataset_size": SAMPLES}
    recipe = ib.Recipe(lr=0.01, optimizer="adamw", duration=f"{TURN * (args.turns + WARM) + 1}st", **sizes)
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
            until = time.thread_time() + 1e-6 * args.busy * (kind == "busy")
            while kind == "busy" and time.thread_time() < until:
                pass
            yield


def take_turns(rank: int, args: Any, pipe: Any) -> None:
    """Sends µs a step, by turn and kind: main thread, all others but the pulse, both, wall, pulse."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})  # Else a busy loop of 50 µs is seen as 30 to 85.
    args.rank = rank
    trainings = []
    for kind in args.kinds:  # The first forms the world.
        trainings.append(training(kind, args))
        next(trainings[-1])
    pulse = next(thread for thread in threading.enumerate() if thread.name == "isobatch pulse")
    clock = time.pthread_getcpuclockid(pulse.ident or 0)

    def turn(at: int) -> Any:
        before = now()
        for _ in range(TURN):
            next(trainings[at])
        return 1e6 / TURN * (now() - before)

    def now() -> Any:
        main, beats = time.thread_time(), time.clock_gettime(clock)
        both = time.process_time() - beats
        return np.array([main, both - main, both, time.perf_counter(), beats])

    places = range(len(trainings))
    for at in [*places] * WARM:
        turn(at)
    turns = islice(cycle(permutations(places)), args.turns)
    pipe.send([[cost for _, cost in sorted((at, turn(at)) for at in order)] for order in turns])
    for training_ in trainings[::-1]:  # To its end, which is that of the world with the first.
        for _ in training_:
            pass


def measured(args: Any) -> Any:
    """Returns the turns, as the mean of the ranks."""
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
    turn_means = np.mean([receiver.recv() for receiver, _ in pipes], axis=0)
    for process in processes:  # The store outlives them.
        process.join()
    return turn_means


def interval(values: Any) -> list[str]:
    """Says each column's median and its 95 % confidence interval, by order statistics: of no distribution."""
    ordered, count = np.sort(values, axis=0), len(values)
    below = max(0, int(count / 2 - 0.98 * count**0.5))
    ends = zip(np.median(values, axis=0), ordered[below], ordered[count - 1 - below], strict=True)
    return ["{:+.1f} ({:+.1f} to {:+.1f})".format(*bounds) for bounds in ends]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=300, help=f"of each kind, of {TURN} steps")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--shards", action="store_const", const=2, default=1, help="HSDP: 2 replicas of 2")
    parser.add_argument("--busy", type=float, default=0.0, help="µs that a third kind adds, to be found")
    args = parser.parse_args()
    args.ranks, args.kinds = 2 * args.shards, ["survivors", "elastic", *["busy"] * (args.busy > 0)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    costs = measured(args)
    pulse = STEP * costs[..., 4].sum() / costs[..., 3].sum()
    costs[:, 0, 2] += pulse
    print("| µs a step | main thread | gloo's threads | all, with the pulse | wall |\n|---|---|---|---|---|")
    for kind, turns in zip(args.kinds, np.moveaxis(costs[..., :4], 1, 0), strict=True):
        print(f"| {kind} | {' | '.join(f'{cost:.0f}' for cost in np.median(turns, axis=0))} |")
        if kind != "elastic":
            print(f"| added, 95 % interval | {' | '.join(interval(turns - costs[:, 1, :4]))} |")
    load = os.getloadavg()[0]
    print(f"the pulse: {pulse:.1f} µs in {STEP / 1e3:.0f} ms; load {load:.1f}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
