"""What rows cost a run: plans of 10^7, 10^8, 10^9 rows in files, a million jobs a file, ten clusters for each job. Seconds, processor's seconds, bytes
read and written, and memory at its peak; the plans are removed at the end.

    python bench/fleet_slopes.py FOLDER 10000000 100000000 1000000000
    python bench/fleet_slopes.py FOLDER 1000000000 --piece 240

With --piece a run is killed (SIGKILL) after that many seconds, and given again until it is complete, as on a machine that is lent by the piece;
--go-on is one more piece of a run that an earlier command has left.

Files of jobs after the tenth are links to the first ten: their plans are written anew, their ids are those of the first.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from fleet_files import COLUMNS, FILE_ROWS, make

CLUSTERS = 10
RUN = """
import json, resource, sys, time
start = time.perf_counter()
import isobatch as ib
jobs, plans, columns, clusters = sys.argv[1:]
made = ib.plan_files(jobs, [8 * n for n in range(1, int(clusters) + 1)], plans, policy="keep", columns=columns.split(","))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "seconds": time.perf_counter() - start, "cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024,
    "rows": made.rows, "state": made.state, "feasible": made.summary.feasible,
}))
"""


def size(folder: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def jobs_of(root: Path, files: int) -> Path:
    """A folder of files of jobs."""
    made = root / "slopes10"
    make(made, min(files, 10))
    folder = root / f"slopes{files}"
    folder.mkdir(exist_ok=True)
    for number in range(files):
        path = folder / f"{number:04}.parquet"
        if not path.exists():
            path.hardlink_to(made / f"{number % 10:04}.parquet")
    return folder


def run(jobs: Path, plans: Path, piece: float | None) -> bool:
    """One run in a process of its own, and its line; False: it was killed."""
    start = time.perf_counter()
    words = [sys.executable, "-c", RUN, str(jobs), str(plans), COLUMNS, str(CLUSTERS)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        out, _ = process.communicate(timeout=piece)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        done = len(list(plans.glob("*.parquet")))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"killed after {time.perf_counter() - start:.0f} s, processor {used.ru_utime + used.ru_stime:.0f} s: "
            f"{done} files of plans are whole",
            flush=True,
        )
        return False
    assert process.returncode == 0
    found = json.loads(out)
    assert found["state"] == "complete"
    print(
        f"{found['rows']:.0e} rows: {found['seconds']:.1f} s, processor {found['cpu']:.1f} s, {found['mib']:.0f} MiB, "
        f"read {size(jobs) / 2**20:.0f} MiB, written {size(plans) / 2**20:.0f} MiB, {found['feasible']} feasible",
        flush=True,
    )
    counted = sum(pq.read_metadata(path).num_rows for path in plans.glob("*.parquet"))
    assert counted == found["rows"] == len(list(jobs.glob("*.parquet"))) * FILE_ROWS * CLUSTERS
    return True


def main() -> None:
    """Prints a line for each size, and for each piece."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--piece", type=float)
    parser.add_argument("--go-on", action="store_true")
    asked = parser.parse_args()
    for rows in asked.rows:
        files = rows // FILE_ROWS // CLUSTERS
        jobs, plans = jobs_of(asked.folder, files), asked.folder / f"slopes-plans{files}"
        if not asked.go_on:
            shutil.rmtree(plans, ignore_errors=True)
        whole = run(jobs, plans, asked.piece)
        while not whole and not asked.go_on:
            whole = run(jobs, plans, asked.piece)
        if whole:
            shutil.rmtree(plans)


if __name__ == "__main__":
    main()
