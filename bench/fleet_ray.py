"""The Ray engine, warm, against the local one: the same files, the same machine, in turns.

    python bench/fleet_ray.py FOLDER [NODES [GPUS,GPUS...]]

FOLDER holds files of jobs, as bench/fleet_files.py or, with counts of GPUs, bench/fleet_many_files.py makes them. The nodes are Ray's own in one process tree, one core each.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import isobatch as ib

REPEATS = 3


def main(folder: str, nodes: str = "2", gpus: str = "") -> None:
    """Prints the median seconds of both engines and their ratio."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(int(nodes) - 1):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    plans = Path(folder).resolve().parent / "plans-of-engines"
    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    met = [int(count) for count in gpus.split(",")] if gpus else None
    rows = 0
    # The first turn warms the workers up.
    for turn in range(REPEATS + 1):
        for engine, times in seconds.items():
            shutil.rmtree(plans, ignore_errors=True)
            start = time.perf_counter()
            rows = ib.plan_files(folder, met, plans, engine=engine).rows
            assert rows
            if turn:
                times.append(time.perf_counter() - start)
    shutil.rmtree(plans)
    local, of_ray = (statistics.median(seconds[engine]) for engine in ("local", "ray"))
    print(
        f"{rows} rows, ray {ray.__version__} with {nodes} nodes of one core: {of_ray:.2f} s; local: {local:.2f} s; ratio {of_ray / local:.2f}"
    )
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
