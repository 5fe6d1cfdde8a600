"""A fleet without memory for its columns raises a MemoryError, and nothing else."""

import subprocess
import sys

import pytest

EDGE = """
import os, resource
import numpy as np
import isobatch as ib

jobs = {"effective_batch": np.arange(1, 20_001) * 8, "lr": np.full(20_000, 0.1)}
for left in range(10, 50, 2):
    # Nothing is imported any more, and a fork starts the core's threads anew.
    ib.plan_fleet({name: column[:1] for name, column in jobs.items()}, [8, 16])
    if fork := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
        continue
    ib.plan_fleet({name: column[:1] for name, column in jobs.items()}, [8, 16])
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (left << 20), resource.RLIM_INFINITY))
    try:
        ib.plan_fleet(jobs, [8, 16])
        print("planned", end=" ", flush=True)
    except MemoryError:
        print("MemoryError", end=" ", flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_the_core_does_not_abort_at_the_edge_of_a_cap():
    """With the columns allocated and next to nothing left.

    The first small allocation that fails would end the process.
    """
    process = subprocess.run([sys.executable, "-c", EDGE], capture_output=True, text=True, timeout=120)
    lines = process.stdout.splitlines()
    assert len(lines) == 20 and {*lines} == {"MemoryError 0", "planned 0"}, (lines, process.stderr)
    assert lines == sorted(lines), "more memory, and no plan any more"
