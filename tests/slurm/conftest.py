"""A Slurm for the tests of this room; they are skipped where it is not installed."""

import tempfile
from pathlib import Path

import pytest

from isobatch.cli import main
from slurm.cluster import PACKAGES, Cluster, missing_programs

PLUGIN = Path(__file__).parents[2] / "examples" / "slurm" / "job_submit.lua"
JOBS = "job,effective_batch,lr,duration,gpus\nvision,256,0.1,1000st,4\n"
CLUSTERS = "nodes,gpus_per_node\n1,1\n1,2\n1,4\n2,4\n"


@pytest.fixture(scope="session")
def cluster():
    """A running Slurm with the submit plugin and its table."""
    if missing := missing_programs():
        pytest.skip(f"no {', '.join(missing)}: apt-get install {PACKAGES}")
    # Not under pytest's folder, which is too deep for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        table, columns = folder / "isobatch.tsv", PLUGIN.read_text().split("--columns ")[1].splitlines()[0]
        (folder / "jobs.csv").write_text(JOBS)
        (folder / "clusters.csv").write_text(CLUSTERS)
        words = ["fleet", str(folder / "jobs.csv"), str(folder / "clusters.csv"), "-o", str(table)]
        assert main([*words, "--columns", columns]) == 0
        slurm = Cluster(folder, PLUGIN.read_text(), table)
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()
