"""What files cost a run, beside their rows: N files of ten jobs, planned, planned again (nothing is left to do), and resumed with half
of the files done. Each in a process of its own: seconds, processor's seconds and memory at its peak, with the seconds of each stage.

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
import json, resource, sys, time
from collections import defaultdict
import isobatch as ib
from isobatch.fleet.folder import run, folder

spent = defaultdict(float)
def timed(module, name, label):
    called = getattr(module, name)
    def call(*args, **how):
        start = time.perf_counter()
        try:
            return called(*args, **how)
        finally:
            spent[label] += time.perf_counter() - start
    setattr(module, name, call)

timed(run, "find", "find")
timed(run, "list_parts", "look at")
timed(folder.Folder, "done", "verify")
timed(run, "_refuse_changed", "compare")
timed(folder.Folder, "begin", "begin")
timed(folder.Folder, "finish", "finish")
start, used = time.perf_counter(), time.process_time()
stop = int(sys.argv[3])
if stop:
    # As a run that is killed: what is done has its receipts, and no more happens.
    import os
    keep, kept = folder.Folder.keep, []
    def stopping(self, receipts):
        keep(self, receipts)
        kept.extend(receipts)
        if len(kept) >= stop:
            os._exit(0)
    folder.Folder.keep = stopping
made = ib.plan_files(sys.argv[1], [8, 16], sys.argv[2], columns=["job", "status", "micro_batch", "lr"])
seconds = time.perf_counter() - start
print(json.dumps({
    "seconds": seconds, "cpu": time.process_time() - used, "rows": made.rows,
    "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "stages": {"plan": seconds - sum(spent.values()), **spent},
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
    found = json.loads(ran.stdout)
    assert found["rows"] == files * ROWS * 2
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in found["stages"].items())
    print(
        f"{files} {name}: {found['seconds']:.2f} s, processor {found['cpu']:.2f} s, {found['mib']:.0f} MiB ({stages})",
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
        manifest = (plans / "_manifest.json").stat().st_size
        run("nothing left", files, jobs, plans)
        print(f"{files} manifest: {manifest / 2**20:.1f} MiB", flush=True)
        shutil.rmtree(plans)


if __name__ == "__main__":
    main(*sys.argv[1:])
