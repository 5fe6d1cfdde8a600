"""The Ray engine, warm, against the local one: the same files, the same machine, in turns. What a task costs, and what the process that
leads takes of memory.

    python bench/fleet_ray.py FOLDER [NODES [GPUS,GPUS...]]

FOLDER holds files of jobs, as bench/fleet_files.py or, with counts of GPUs, bench/fleet_many_files.py makes them. The nodes are Ray's own in one process tree, one core each.
Processor's seconds are those of this process and of all that Ray has started, less what these take when nothing is asked of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

import isobatch as ib
from isobatch.fleet.folder import run as engine

REPEATS = 3
IDLE, BARE = 5.0, 1000


def spent() -> float:
    """Processor's seconds of this process and of those that it and Ray have started."""
    parent, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parent[int(path.parent.name)] = int(words[1])
        used[int(path.parent.name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def is_ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parent.get(process, 0)
        return process == os.getpid()

    return sum(seconds for process, seconds in used.items() if is_ours(process))


def measured(call: Callable[[], Any], idle: float = 0.0) -> tuple[float, float, float]:
    """Seconds, processor's seconds, and MiB of this process at its peak above what it had."""
    Path("/proc/self/clear_refs").write_text("5")
    before, used, start = memory("VmRSS"), spent(), time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return seconds, spent() - used - idle * seconds, memory("VmHWM") - before


def memory(what: str) -> float:
    """MiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def bare(words: int) -> None:
    """Tasks that do nothing, with as many words as a group of parts has, as many at a time as the engine has in flight."""
    task = ray.remote(num_cpus=1)(lambda given: len(given))
    given = [f"a name of a file of jobs that a part has, {n}" for n in range(words)]
    flying = set()
    for _ in range(BARE):
        flying.add(task.remote(given))
        if len(flying) == 4:
            done, _ = ray.wait(list(flying), num_returns=1)
            flying -= set(done)
            ray.get(done)
    ray.get(list(flying))


def main(folder: str, nodes: str = "2", gpus: str = "") -> None:
    """Prints the median seconds of both engines and their ratio, and what a task costs."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(int(nodes) - 1):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    plans = Path(folder).resolve().parent / "plans-of-engines"
    found: dict[str, list[tuple[float, float, float]]] = {"local": [], "ray": []}
    met = [int(count) for count in gpus.split(",")] if gpus else None
    tasks: list[int] = []
    grouped = engine.group_parts

    def counted(*args: Any) -> Any:
        groups = grouped(*args)
        tasks.append(len(groups))
        return groups

    engine.group_parts = counted
    bare(1)
    idle = measured(lambda: time.sleep(IDLE))[1] / IDLE
    print(
        f"load {os.getloadavg()[0]:.1f}; Ray {ray.__version__}, {nodes} nodes of one core; idle, it takes {idle:.2f} of a core"
    )
    # The first turn warms the workers up.
    for turn in range(REPEATS + 1):
        for name, times in found.items():
            shutil.rmtree(plans, ignore_errors=True)
            taken = measured(lambda name=name: ib.plan_files(folder, met, plans, engine=name), idle)
            if turn:
                times.append(taken)
    made = ib.plan_files(folder, met, plans, engine="local")
    shutil.rmtree(plans)
    of_each = {
        name: [statistics.median(column) for column in zip(*times, strict=True)]
        for name, times in found.items()
    }
    for name, (seconds, used, mib) in of_each.items():
        print(
            f"{name}: {made.rows} rows of {len(made.parts)} files, {seconds:.2f} s, processor {used:.2f} s, leader's memory + {mib:.1f} MiB"
        )
    local, of_ray = of_each["local"], of_each["ray"]
    print(
        f"ratio {of_ray[0] / local[0]:.2f}, processor {of_ray[1] / local[1]:.2f}; {tasks[-1]} tasks, each {(of_ray[1] - local[1]) / tasks[-1] * 1e3:.2f} ms more of a core than without Ray"
    )
    for words in (1, 64):
        seconds, used, _ = measured(lambda words=words: bare(words), idle)
        print(
            f"a task that does nothing, of {words} words: {seconds / BARE * 1e3:.2f} ms, of a core {used / BARE * 1e3:.2f} ms"
        )
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
