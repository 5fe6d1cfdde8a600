"""Divides a Ray cluster's GPUs over elastic jobs, every time that it looks.

`python examples/ray/divide.py jobs.csv --folder /shared`.

The table is `isobatch allocate`'s, with a column `train`: the `module:function` that a TorchTrainer runs on
each worker, with `elastic_run` and `report`. Who gets other GPUs is ended, and started again from its last
report in the folder.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

import isobatch as ib


@ray.remote(num_cpus=0, max_retries=0)
def fit(row: dict[str, Any], on: dict[str, int], folder: str, gpu: str) -> None:
    """Trains a job on its GPUs of each node, from its last report."""
    module, function = row["train"].split(":")
    workers = [{"ray.io/node-id": node} for node, gpus in on.items() for _ in range(gpus)]
    scaling = ray.train.ScalingConfig(
        num_workers=len(workers), label_selector=workers, use_gpu=gpu == "GPU", resources_per_worker={gpu: 1}
    )
    run = ray.train.RunConfig(name=row["job"], storage_path=folder)
    config = {"job": row["job"], "folder": folder}
    TorchTrainer(
        getattr(import_module(module), function),
        train_loop_config=config,
        scaling_config=scaling,
        run_config=run,
    ).fit()


def divide(jobs: list[dict[str, Any]], folder: str, every: float, gpu: str, settings: dict[str, Any]) -> None:
    """Asks who gets what and does it, until each job has ended, or has failed three times."""
    unfinished, since = {row["job"]: row | {"restarts": -1} for row in jobs}, time.time()
    runs: dict[str, tuple[ray.ObjectRef, dict[str, int]]] = {}
    failures: Counter[str] = Counter()
    while unfinished:
        nodes = [
            (node["NodeID"], int(node["Resources"].get(gpu, 0))) for node in ray.nodes() if node["Alive"]
        ]
        pool = [{"node": node, "gpus": gpus} for node, gpus in nodes if gpus]
        age = {"age_seconds": time.time() - since}
        rows = [row | age | {"restarts": max(row["restarts"], 0)} for row in unfinished.values()]
        placements = [
            {"job": job, "node": node, "gpus": n} for job, (_, on) in runs.items() for node, n in on.items()
        ]
        allocation = ib.allocate(rows, pool, held=placements, **settings)
        ending = [runs.pop(job)[0] for job in {change.job for change in allocation.changes} & runs.keys()]
        for ref in ending:
            ray.cancel(ref)  # as Ctrl-C does it: Ray Train then ends the workers, and frees their GPUs
        ray.wait(ending, num_returns=len(ending)) if ending else None
        for change in allocation.changes:
            if change.nodes:
                runs[change.job] = fit.remote(unfinished[change.job], change.nodes, folder, gpu), change.nodes
                unfinished[change.job]["restarts"] += 1
                print(f"{change.job}: {change.action} {[*change.nodes.values()]}", flush=True)
        ended, _ = ray.wait([ref for ref, _ in runs.values()], timeout=every)
        for job in [job for job, (ref, _) in runs.items() if ref in ended]:
            ref, on = runs.pop(job)
            try:
                ray.get(ref)
                del unfinished[job]
            except ray.exceptions.RayError as error:
                print(f"{job}: {error}", flush=True)
                # Where a node has gone it is no failure of the job.
                failures[job] += on.keys() <= {node["NodeID"] for node in ray.nodes() if node["Alive"]}
                if failures[job] == 3:
                    del unfinished[job]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path, help="a table of jobs, with a profile each")
    parser.add_argument("--folder", required=True, help="where Ray keeps the checkpoints")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two looks")
    parser.add_argument("--gpu", default="GPU", help="the resource that is divided")
    parser.add_argument("--max-micro-batch", type=int, help="as in isobatch allocate")
    args = parser.parse_args()
    with args.jobs.open(newline="") as file:
        table = list(csv.DictReader(file))
    ray.init(address="auto")
    divide(
        table, args.folder, args.every, args.gpu, {"split": "uneven", "max_micro_batch": args.max_micro_batch}
    )


if __name__ == "__main__":
    main()
