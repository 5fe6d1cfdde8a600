"""Every column of a fleet, most rows infeasible and with what would work instead, beside merely writing the same bytes.

python bench/fleet_columns.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import isobatch as ib

JOBS, CLUSTERS, REPEATS = 20_000, 100, 5
RNG = np.random.default_rng(0)
BATCHES = {
    "nine usual batches": RNG.choice([240, 256, 480, 720, 1024, 1536, 4096, 5040, 8192], JOBS),
    "multiples of 55,440": 55_440 * RNG.integers(1, 40, JOBS),
    "any batch to 2^20": RNG.integers(1, 1 << 20, JOBS),
}


def least(call: Callable[[], object]) -> float:
    """The processor's seconds of the best of some calls."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Prints a line for each kind of jobs."""
    for name, batches in BATCHES.items():
        jobs = {
            "effective_batch": batches,
            "lr": RNG.uniform(1e-4, 1, JOBS),
            "dataset_size": RNG.integers(10**5, 10**7, JOBS),
            "optimizer": np.where(RNG.random(JOBS) < 0.5, "sgd", "adamw"),
            "duration": np.full(JOBS, "90ep"),
            "warmup": np.full(JOBS, "5ep"),
        }

        def plan(jobs: dict[str, np.ndarray] = jobs) -> dict[str, np.ndarray]:
            return ib.plan_fleet(jobs, range(1, CLUSTERS + 1), max_micro_batch=64)

        table = plan()
        kinds = [column.dtype for column in table.values()]
        feasible = (table["status"] != "infeasible").mean()
        rows = JOBS * CLUSTERS
        del table

        def write(kinds: list[np.dtype] = kinds, rows: int = rows) -> None:
            fresh = [np.empty(rows, kind) for kind in kinds]
            halves = slice(0, rows // 2), slice(rows // 2, rows)
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda half: [column[half].fill(1) for column in fresh], halves))

        planned, written = least(plan), least(write)
        print(
            f"{name:22} {len(kinds)} columns, {feasible:.0%} feasible: {planned:.3f} s, written {written:.3f} s, "
            f"{written / planned:.2f}"
        )


if __name__ == "__main__":
    main()
