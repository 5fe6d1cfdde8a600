"""The fleet's planning, choices, columns and files, and schedules, on one thread and on two, each in a
process of its own, in turns: the least seconds, and the efficiency, t1 / (2 × t2). Two rows beside them say
what the machine gives: merely filling as many bytes, and counting, which touches no memory.

    python bench/fleet_threads.py [WORDS...]

With words, only the work whose names have one of them. As many threads are as many cores, too, where the
work is files.

On a shared machine seconds are mostly those of waiting. The last column then says what two idle cores could
do at best: the processor's seconds on one thread over twice those on the way through two, which are the
caller's own and half of those of the others: the threads take their parts from each other until none is
left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from fleet_files import COLUMNS, make

TURNS, REPEATS = 3, 4
JOB_FILES = 8
CODE = """
import hashlib, json, os, shutil, sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import isobatch as ib

what, folder, columns_of_files = sys.argv[1], sys.argv[3], sys.argv[4]
threads, repeats = int(os.environ["RAYON_NUM_THREADS"]), int(sys.argv[2])
if what.startswith("files"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
rng = np.random.default_rng(0)
def jobs(rows):
    return {
        "effective_batch": rng.choice([256, 480, 1024, 1536, 4096, 8192], rows),
        "lr": rng.uniform(1e-4, 0.1, rows),
        "dataset_size": rng.integers(10**5, 10**7, rows),
        "duration": rng.choice(["90ep", "100000st", "300ep"], rows),
        "noise_scale": rng.uniform(1e3, 1e5, rows),
    }
columns = ["status", "world_size", "micro_batch", "accumulation", "effective_batch", "lr", "lr_scale",
    "weight_decay", "warmup_steps", "steps_per_epoch", "total_steps"]
speed = {"parameters": 10**8, "flops_per_sample": 1e12, "gpu_tflops": 300}
profile = ib.Profile.estimate(**speed, intra_gb_s=400, inter_gb_s=40)
crossed, own, few = jobs(20_000), {}, jobs(10_000)
if "own cluster" in what:
    own = jobs(1_000_000)
    rows = len(own["lr"])
    own |= {"nodes": rng.choice([1, 2, 4, 8, 12], rows), "gpus_per_node": np.full(rows, 8)}
sizes = range(1, 257)
def fill():
    fresh = [np.empty(4_000_000, np.int64) for _ in range(8)]
    parts = [slice(n * 4_000_000 // threads, (n + 1) * 4_000_000 // threads) for n in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: [column[part].fill(1) for column in fresh], parts))
def count():
    with ThreadPoolExecutor(threads) as pool:
        count = lambda _: hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1_000_000 // threads)
        list(pool.map(count, range(threads)))
def choice(policy, select):
    how = {"policy": policy, "select": select, "columns": ["job", "world_size", "hours"]}
    return ib.plan_fleet(few, sizes, profile=profile, max_micro_batch=64, **how)
out = np.empty((1000, 20_000) if what.startswith("schedules") else 0, np.float32)
def matrix(make):
    rates = [1e-3 * (1 + n / 1000) for n in range(1000)] if what.startswith("schedules") else []
    made = [S.warmup(make(lr), 500) for lr in rates]
    return lambda: ib.schedule_matrix(made, np.arange(20_000), out=out)
S = ib.schedules
def files():
    shutil.rmtree(folder + "/plans", ignore_errors=True)
    clusters, columns = [8 * n for n in range(1, 11)], columns_of_files.split(",")
    ib.plan_files(folder + "/jobs", clusters, folder + "/plans", policy="keep", columns=columns)
work = {
    "filling fresh memory": fill,
    "counting": count,
    "plan, 20,000 jobs × 100 clusters, 11 columns":
        lambda: ib.plan_fleet(crossed, range(1, 101), columns=columns),
    "plan, 1 M rows with their own cluster, 11 columns": lambda: ib.plan_fleet(own, columns=columns),
    "all columns, 20,000 jobs × 100 clusters":
        lambda: ib.plan_fleet(crossed, range(1, 101), max_micro_batch=64),
    "choice, keep, 10,000 jobs × 256 sizes": lambda: choice("keep", "fastest"),
    "choice, grow, 10,000 jobs × 256 sizes": lambda: choice("grow", "fastest"),
    "choice, goodput, 10,000 jobs × 256 sizes": lambda: choice("goodput", "goodput"),
    "schedules, 1,000 cosines × 20,000 steps, float32": matrix(lambda lr: S.cosine(lr, 19_500)),
    "schedules, 1,000 inverse square roots × 20,000 steps, float32":
        matrix(lambda lr: S.inverse_sqrt(lr, 500)),
    "files, 8 of 100,000 jobs × 10 clusters, 12 columns": files,
}
if what == "list":
    print(json.dumps(list(work)))
    raise SystemExit
def of_threads():
    # Processor's seconds of each thread.
    tasks = os.listdir("/proc/self/task")
    return {task: int(open(f"/proc/self/task/{task}/schedstat").read().split()[0]) / 1e9 for task in tasks}
call = work[what]
call()
least, used, way = float("inf"), float("inf"), float("inf")
for _ in range(repeats):
    start, before, each = time.perf_counter(), time.process_time(), of_threads()
    call()
    least, used = min(least, time.perf_counter() - start), min(used, time.process_time() - before)
    spent = {task: seconds - each.get(task, 0.0) for task, seconds in of_threads().items()}
    caller = spent.pop(str(os.getpid()))
    way = min(way, caller + sum(spent.values()) / 2)
print(json.dumps([least, used, way]))
"""


def run(threads: int, work: str, folder: str) -> Any:
    """The output of a process with that many threads: the kinds of work, or of one the least seconds and
    the processor's.
    """
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", CODE, work, str(REPEATS), folder, COLUMNS]
    ran = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    return json.loads(ran.stdout)


def make_jobs(folder: str) -> None:
    """Files of jobs, for what plans files."""
    make(Path(folder) / "whole", 1)
    table = pq.read_table(Path(folder) / "whole" / "0000.parquet")
    (Path(folder) / "jobs").mkdir()
    for number in range(JOB_FILES):
        some = table.slice(number * 100_000, 100_000)
        pq.write_table(some, Path(folder) / "jobs" / f"{number}.parquet", compression="zstd")


def main(*words: str) -> None:
    """Prints a line for each kind of work."""
    with tempfile.TemporaryDirectory() as folder:
        make_jobs(folder)
        measure(folder, words)


def measure(folder: str, words: tuple[str, ...]) -> None:
    """Prints the lines."""
    print(
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; least of {TURNS} × {REPEATS}"
    )
    print(
        "| work | one thread | two | efficiency | processor, one | two / one | efficiency by the processor |"
    )
    print("|---|---|---|---|---|---|---|")
    for work in run(1, "list", folder):
        if words and not any(word in work for word in words):
            continue
        best = {1: [float("inf")] * 3, 2: [float("inf")] * 3}
        for _ in range(TURNS):
            for threads, least in best.items():
                best[threads] = [min(pair) for pair in zip(least, run(threads, work, folder), strict=True)]
        single, double = best[1], best[2]
        # Threads that have ended tell nothing.
        by_processor = f"{single[1] / double[2] / 2:.2f}" if double[2] > 0.49 * double[1] else "–"
        print(
            f"| {work} | {single[0]:.3f} s | {double[0]:.3f} s | {single[0] / double[0] / 2:.2f} | "
            f"{single[1]:.3f} s | {double[1] / single[1]:.2f} | {by_processor} |",
            flush=True,
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
