"""A fleet that has no memory for its columns says so, and nothing else."""

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

EDGE = """
import resource, sys
import numpy as np
import isobatch as ib

jobs = {"effective_batch": np.arange(1, 20_001) * 8, "lr": np.full(20_000, 0.1)}
ib.plan_fleet({name: column[:1] for name, column in jobs.items()}, [8, 16])  # nothing is imported any more
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20), resource.RLIM_INFINITY))
try:
    ib.plan_fleet(jobs, [8, 16])
    print("planned")
except MemoryError as error:
    print("MemoryError", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_the_core_does_not_abort_at_the_edge_of_a_cap():
    """With the columns allocated and next to nothing left, the first small allocation that fails would end the process."""
    said = []
    for left in range(10, 50, 2):
        words = [sys.executable, "-c", EDGE, str(left)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (left, done.stderr)
        said.append(done.stdout.split()[0])
    assert said[0] == "MemoryError" and said[-1] == "planned"
    assert said == sorted(said), "more memory, and no plan any more"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_columns_without_memory_are_a_memory_error_that_says_how_much():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Unable to allocate 122. MiB" in done.stdout and "panic" not in done.stderr
