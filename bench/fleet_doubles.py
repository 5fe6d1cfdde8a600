"""What it costs to look for doubled ids over a whole fleet: one file of jobs into one of plans with the look and without, in turns, a process
each.

    python bench/fleet_doubles.py FOLDER [ROWS] [TURNS]
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

JOBS, PLANS = "doubles.csv", "doubles.parquet"


def write(path, rows):
    """A file of jobs that are all different."""
    with path.open("w") as file:
        file.write("job,effective_batch,lr\n")
        for start in range(0, rows, 100_000):
            stop = min(rows, start + 100_000)
            file.write("".join(f"job-{n:010},256,0.1\n" for n in range(start, stop)))


def plan(folder, look):
    """One run, in this process: seconds, processor's seconds, MiB."""
    from isobatch.cli import main
    from isobatch.fleet.folder import work

    if look == "without":
        work.hashes_of = lambda ids: np.empty(0, np.int64)
    begin = time.perf_counter()
    words = ["fleet", f"{folder}/{JOBS}", "--gpus", "8", "--columns", "job,status,micro_batch"]
    assert main([*words, "-o", f"{folder}/{PLANS}"]) == 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))


def run(folder, rows, turns):
    """All turns, each with and without."""
    write(folder / JOBS, rows)
    for turn in range(turns):
        for look in ("without", "with"):
            words = [sys.executable, __file__, str(folder), "--one", look]
            done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
            seconds, processor, memory = json.loads(done.stdout)
            print(
                f"turn {turn + 1}, {look} the look: {seconds:.1f} s, processor {processor:.1f} s, {memory:.0f} MiB",
                flush=True,
            )
    for name in (JOBS, PLANS):
        (folder / name).unlink()


if __name__ == "__main__":
    if "--one" in sys.argv:
        plan(sys.argv[1], sys.argv[3])
    else:
        rows, turns = (*map(int, sys.argv[2:]), *(10_000_000, 3)[len(sys.argv) - 2 :])
        run(Path(sys.argv[1]), rows, turns)
