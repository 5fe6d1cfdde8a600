"""The cost of files in a run, beside their rows: N files of ten jobs, planned in a run killed after half
of them, then the other half, then nothing. Each in a process of its own: seconds, processor's seconds and
memory at its peak.

    python bench/fleet_many_files.py FOLDER 1000 10000 100000
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 10
RUN = """
import json, os, resource, sys, time
from isobatch.fleet.plan_folder import run
from isobatch.fleet.query import query

stop = int(sys.argv[3])
def progress(done, files):
    if done == stop:  # as a run that is killed
        os._exit(0)

start, used = time.perf_counter(), time.process_time()
asked = query([8, 16], columns=["job", "status", "micro_batch", "lr"])
plans = run(asked, sys.argv[1], sys.argv[2], progress=progress)
print(json.dumps({
    "seconds": time.perf_counter() - start, "cpu": time.process_time() - used, "rows": plans.rows,
    "skipped": plans.skipped, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def make(folder: Path, files: int) -> None:
    """Files of jobs; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(files):
        path = folder / f"{number:06}.parquet"
        if path.exists():
            continue
        jobs = {
            "job": np.arange(number * ROWS, (number + 1) * ROWS),
            "effective_batch": rng.choice([256, 512, 1000, 1024, 4096], ROWS),
            "lr": rng.uniform(1e-4, 1, ROWS),
            "optimizer": pa.array(rng.choice(["sgd", "adamw"], ROWS)),
            "duration": pa.array(rng.choice(["90ep", "100000st"], ROWS)),
            "dataset_size": rng.integers(10**5, 10**7, ROWS),
        }
        pq.write_table(pa.table(jobs), path, compression="zstd")


def run(name: str, files: int, jobs: Path, plans: Path, stop: int = 0) -> None:
    """One run in a process of its own, and its line."""
    start = time.perf_counter()
    words = [sys.executable, "-c", RUN, str(jobs), str(plans), str(stop)]
    ran = subprocess.run(words, check=True, capture_output=True, text=True)
    if stop:
        print(f"{files} {name}: {time.perf_counter() - start:.1f} s", flush=True)
        return
    figures = json.loads(ran.stdout)
    assert figures["rows"] == files * ROWS * 2
    print(
        f"{files} {name}: {figures['seconds']:.2f} s, processor {figures['cpu']:.2f} s, "
        f"{figures['mib']:.0f} MiB, {figures['skipped']} skipped",
        flush=True,
    )


def main(folder: str, *sizes: str) -> None:
    """Prints three lines for each number of files."""
    root = Path(folder)
    for files in map(int, sizes):
        jobs, plans = root / f"many{files}", root / f"many-plans{files}"
        make(jobs, files)
        shutil.rmtree(plans, ignore_errors=True)
        run("half, then killed", files, jobs, plans, files // 2)
        run("the other half", files, jobs, plans)
        run("nothing left", files, jobs, plans)
        shutil.rmtree(plans)


if __name__ == "__main__":
    main(*sys.argv[1:])
