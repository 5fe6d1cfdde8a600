"""A job that Slurm starts again on other GPUs: with ElasticRun the same run."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from isobatch.cli import main

pytestmark = pytest.mark.slow
TRAIN = Path(__file__).parents[2] / "examples" / "elastic" / "train.py"
STEPS = 84


def steps(folder):
    """Each step's samples and rate, as the last process that did it says; and the GPUs of all of them."""
    starts_of = defaultdict(dict)
    for log in sorted(folder.glob("log-*.jsonl")):
        start = log.name.split("-")[1]
        for line in map(json.loads, log.read_text().splitlines()):
            starts_of[line["step"]].setdefault(start, []).append(line)
    last = {step: starts[max(starts)] for step, starts in starts_of.items()}
    samples = {step: sorted(i for line in lines for i in line["ids"]) for step, lines in last.items()}
    return (
        samples,
        {step: lines[0]["lr"] for step, lines in last.items()},
        {s: ls[0]["of"] for s, ls in last.items()},
    )


def undisturbed(folder):
    """The run of one process alone."""
    subprocess.run([sys.executable, str(TRAIN), "--folder", str(folder)], check=True, timeout=120)


def requeued(cluster, number, file):
    """The same job, started again on three GPUs."""
    cluster.run("scontrol", "requeuehold", number)
    cluster.wait(number, "PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")
    cluster.run("scontrol", "update", f"JobId={number}", "TresPerNode=gres:gpu:3")
    cluster.run("scontrol", "release", number)
    cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    return number


def out_of_time(cluster, number, file):
    """The signal that Slurm sends before a job's time is over; then another job, on three GPUs."""
    cluster.run("scancel", "--signal=USR1", number)
    assert cluster.wait(number) == "FAILED"
    logged, saved = steps(file.parent / "moved")[0], torch_load(file.parent / "moved")["run"]
    assert saved["step"] == max(logged) + 1  # nothing is done again
    return cluster.sbatch(file, "--gpus-per-node=3")


def torch_load(folder):
    import torch

    return torch.load(folder / "checkpoint.pt")


@pytest.mark.parametrize("again", [requeued, out_of_time])
def test_a_job_that_goes_on_with_three_gpus_in_the_place_of_two_is_the_same_run(cluster, tmp_path, again):
    torch = pytest.importorskip("torch", reason="the job trains with it")
    folder, file = tmp_path / "moved", tmp_path / "job.sbatch"
    fields = ["--set", "effective_batch=24", "--set", "lr=0.01", "--set", "duration=84st", "--gpus", "2"]
    plan = str(tmp_path / "plan.json")
    assert main(["plan", *fields, "-o", plan]) == 0
    script = f"{TRAIN} --folder {folder} --pause 0.2"
    assert main(["plan", plan, "--to", "slurm", "--elastic", "--script", script, "-o", str(file)]) == 0

    number = cluster.sbatch(file)
    end = time.monotonic() + 120
    while not (folder.exists() and len(steps(folder)[0]) > 20):
        assert time.monotonic() < end, cluster.output(number)
        time.sleep(0.5)
    number = again(cluster, number, file)
    assert cluster.wait(number) == "COMPLETED", cluster.output(number)

    undisturbed(tmp_path / "alone")
    samples, rates, gpus = steps(folder)
    assert (samples, rates) == steps(tmp_path / "alone")[:2]
    assert sorted(samples) == [*range(STEPS)]
    assert [*dict.fromkeys(gpus[step] for step in range(STEPS))] == [2, 3]
    weights, whole_weights = (torch_load(path)["model"] for path in (folder, tmp_path / "alone"))
    assert all(
        torch.allclose(weights[name], whole_weights[name], rtol=1e-9, atol=1e-12) for name in whole_weights
    )
