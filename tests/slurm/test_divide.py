"""A scheduler in the loop: examples/slurm/divide.py changes a real Slurm's jobs as GPUs come and go."""

import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pytest

from allocation.pools import profile
from isobatch.cli import main
from slurm.test_elastic import STEPS, TRAIN, steps, torch_load, undisturbed

pytestmark = pytest.mark.slow
DIVIDE = Path(__file__).parents[2] / "examples" / "slurm" / "divide.py"


def submit(cluster, folder, name, plan):
    """Submits a job, held."""
    script = f"{TRAIN} --folder {folder / name} --pause 0.5"
    file = folder / f"{name}.sbatch"
    assert main(["plan", plan, "--to", "slurm", "--elastic", "--script", script, "-o", str(file)]) == 0
    return cluster.sbatch(file, "--hold", f"--job-name={name}")


def until(is_done, explain, seconds=180):
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, explain()
        time.sleep(0.5)


def test_jobs_and_nodes_that_come_and_go(cluster, tmp_path):
    torch = pytest.importorskip("torch", reason="the jobs train with it")
    fields = ["--set", "effective_batch=24", "--set", "lr=0.01", "--set", "duration=84st", "--gpus", "2"]
    plan, speed, table = (str(tmp_path / name) for name in ("plan.json", "speed.json", "jobs.csv"))
    assert main(["plan", *fields, "-o", plan]) == 0
    profile().save(speed)
    columns = "job,effective_batch,lr,duration,profile,max_gpus,restart_seconds\n"
    Path(table).write_text(columns + "".join(f"{job},24,0.01,84st,{speed},4,0.01\n" for job in "ab"))
    cluster.run("scontrol", "update", "NodeName=127.0.0.3", "State=DRAIN", "Reason=test")
    first = submit(cluster, tmp_path, "a", plan)
    words = [sys.executable, str(DIVIDE), table, "--every", "1", "--max-micro-batch", "3"]
    with (tmp_path / "divide.txt").open("w") as log:
        loop = subprocess.Popen(words, env=cluster.environment, stdout=log, stderr=log)
    logs = lambda: (tmp_path / "divide.txt").read_text() + cluster.logs()  # noqa: E731
    try:
        until(lambda: len(steps(tmp_path / "a")[0]) > 5, logs)
        second = submit(cluster, tmp_path, "b", plan)  # the four GPUs are for both
        until(lambda: len(steps(tmp_path / "b")[0]) > 5, logs)
        cluster.run("scontrol", "update", "NodeName=127.0.0.3", "State=RESUME")  # and now each has four
        assert [cluster.wait(number) for number in (first, second)] == ["COMPLETED"] * 2, logs()
        assert loop.wait(60) == 0, logs()
    finally:
        loop.kill()
        loop.wait()
    undisturbed(tmp_path / "alone")
    alone = steps(tmp_path / "alone")
    for name in "ab":
        samples, rates, gpus = steps(tmp_path / name)
        assert (samples, rates) == alone[:2]
        assert sorted(samples) == [*range(STEPS)]
        met = [gpus[step] for step in range(STEPS)]
        assert [n for n, _ in groupby(met)] == {"a": [4, 2, 4], "b": [2, 4]}[name], logs()
        weights, whole_weights = (torch_load(tmp_path / run)["model"] for run in (name, "alone"))
        assert all(
            torch.allclose(weights[key], whole_weights[key], rtol=1e-9, atol=1e-12) for key in whole_weights
        )
