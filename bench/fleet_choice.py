"""A scheduler's question: 10,000 jobs at 256 sizes each, the fastest of each, in one call.

python bench/fleet_choice.py
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

import isobatch as ib

JOBS, SIZES, REPEATS = 10_000, 256, 7


def main() -> None:
    """Prints a line for each policy."""
    rng = np.random.default_rng(0)
    jobs = {
        "effective_batch": rng.choice([256, 480, 1024, 1536, 4096, 8192], JOBS),
        "lr": rng.uniform(1e-4, 0.1, JOBS),
        "dataset_size": rng.integers(10**5, 10**7, JOBS),
        "duration": rng.choice(["90ep", "100000st", "300ep"], JOBS),
        "noise_scale": rng.uniform(1e3, 1e5, JOBS),
    }
    sizes = list(range(1, SIZES + 1))
    profile = ib.Profile.estimate(
        parameters=10**8, flops_per_sample=1e12, gpu_tflops=300, intra_gb_s=400, inter_gb_s=40
    )
    settings = {
        "profile": profile,
        "max_micro_batch": 64,
        "columns": ["job", "world_size", "micro_batch", "hours"],
    }
    cores = len(os.sched_getaffinity(0))
    print(f"{JOBS} jobs × {SIZES} sizes, {cores} cores, median and least of {REPEATS}")
    for policy, select in (("keep", "fastest"), ("grow", "fastest"), ("goodput", "goodput")):
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            fleet = ib.plan_fleet(jobs, sizes, policy=policy, select=select, **settings)
            seconds.append(time.perf_counter() - start)
        assert len(fleet["job"]) == JOBS
        print(f"policy={policy:8} select={select:8} {statistics.median(seconds):.3f} s  {min(seconds):.3f} s")


if __name__ == "__main__":
    main()
