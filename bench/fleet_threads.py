"""The fleet's planning, choices and columns on one thread and on two, each in a process of its own, in turns: the least seconds, and the
efficiency, t1 / (2 × t2). A row beside them says what the machine gives: merely filling as many bytes.

    python bench/fleet_threads.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

TURNS, REPEATS = 5, 4
CODE = """
import json, os, sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import isobatch as ib

threads, what, repeats = int(os.environ["RAYON_NUM_THREADS"]), sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
def jobs(rows):
    return {
        "effective_batch": rng.choice([256, 480, 1024, 1536, 4096, 8192], rows),
        "lr": rng.uniform(1e-4, 0.1, rows),
        "dataset_size": rng.integers(10**5, 10**7, rows),
        "duration": rng.choice(["90ep", "100000st", "300ep"], rows),
        "noise_scale": rng.uniform(1e3, 1e5, rows),
    }
columns = ["status", "world_size", "micro_batch", "accumulation", "effective_batch", "lr", "lr_scale", "weight_decay",
    "warmup_steps", "steps_per_epoch", "total_steps"]
profile = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e12, gpu_tflops=300, intra_gb_s=400, inter_gb_s=40)
crossed, own = jobs(20_000), jobs(1_000_000)
own |= {"nodes": rng.choice([1, 2, 4, 8, 12], len(own["lr"])), "gpus_per_node": np.full(len(own["lr"]), 8)}
few = {name: column[:10_000] for name, column in jobs(10_000).items()}
sizes = range(1, 257)
def fill():
    fresh = [np.empty(4_000_000, np.int64) for _ in range(8)]
    parts = [slice(n * 4_000_000 // threads, (n + 1) * 4_000_000 // threads) for n in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: [column[part].fill(1) for column in fresh], parts))
work = {
    "filling fresh memory": fill,
    "plan, 20,000 jobs × 100 clusters, 11 columns": lambda: ib.plan_fleet(crossed, range(1, 101), columns=columns),
    "plan, 1 M rows with their own cluster, 11 columns": lambda: ib.plan_fleet(own, columns=columns),
    "all columns, 20,000 jobs × 100 clusters": lambda: ib.plan_fleet(crossed, range(1, 101), max_micro_batch=64),
    "choice, keep, 10,000 jobs × 256 sizes": lambda: ib.plan_fleet(few, sizes, profile=profile, max_micro_batch=64,
        select="fastest", columns=["job", "world_size", "hours"]),
    "choice, goodput, 10,000 jobs × 256 sizes": lambda: ib.plan_fleet(few, sizes, profile=profile, max_micro_batch=64,
        policy="goodput", select="goodput", columns=["job", "world_size", "hours"]),
}
if what == "list":
    print(json.dumps(list(work)))
    raise SystemExit
call = work[what]
call()
least, used = float("inf"), float("inf")
for _ in range(repeats):
    start, before = time.perf_counter(), time.process_time()
    call()
    least, used = min(least, time.perf_counter() - start), min(used, time.process_time() - before)
print(json.dumps([least, used]))
"""


def run(threads: int, what: str) -> Any:
    """What a process with that many threads prints: the kinds of work, or of one the least seconds and the processor's."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", CODE, what, str(REPEATS)]
    ran = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    return json.loads(ran.stdout)


def main() -> None:
    """Prints a line for each kind of work."""
    print(
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; least of {TURNS} × {REPEATS}"
    )
    print("| work | one thread | two | efficiency | processor, two / one |")
    print("|---|---|---|---|---|")
    for what in run(1, "list"):
        best = {1: [float("inf")] * 2, 2: [float("inf")] * 2}
        for _ in range(TURNS):
            for threads, least in best.items():
                best[threads] = [min(pair) for pair in zip(least, run(threads, what), strict=True)]
        one, two = best[1], best[2]
        print(
            f"| {what} | {one[0]:.3f} s | {two[0]:.3f} s | {one[0] / two[0] / 2:.2f} | {two[1] / one[1]:.2f} |",
            flush=True,
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
