"""A fleet that has no memory for its columns says so, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
import isobatch as ib

jobs = {"effective_batch": np.full(4000, 256), "lr": np.full(4000, 0.1)}
ib.plan_fleet({name: column[:1] for name, column in jobs.items()}, {"gpus_per_node": [8]})
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
try:
    ib.plan_fleet(jobs, {"gpus_per_node": np.arange(1, 4001)})
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_columns_without_memory_are_a_memory_error_that_says_how_much():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Unable to allocate 122. MiB" in done.stdout and "panic" not in done.stderr
