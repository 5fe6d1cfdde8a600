"""Two processes train by the files for Lightning, torchrun and Accelerate, and report the plan's steps."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.tools.sheet import Job

pytest.importorskip("torch", reason="trains")

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SCRIPT = Path(__file__).with_name("reading_environment.py")
HOSTILE = "a b'c\"; $(touch hacked) `touch hacked` $HOME\nd"


@pytest.fixture
def plan():
    batch = {"effective_batch": 16, "gpus": 4, "micro_batch": 4, "dataset_size": 160, "duration": "2ep"}
    planned = ib.plan(ib.Recipe(**batch, lr=0.01, warmup="4st", schedule="linear"), 2)
    assert (planned.micro_batch, planned.accumulation, planned.total_steps) == (4, 2, 20)
    return planned


def check(plan, report):
    assert report["batch"] == plan.effective_batch
    assert report["lr"] == pytest.approx(plan.schedule.values(range(plan.total_steps)).tolist(), rel=1e-12)
    assert report["samples"] == [plan.effective_batch] * plan.total_steps


def test_lightning(plan, two, tmp_path):
    from ddp import exported

    pytest.importorskip("lightning")
    file = tmp_path / "trainer.yaml"
    plan.to("lightning").save(file)
    for report in two(exported.lightning, str(file), 160, plan.to_json()):
        check(plan, report)
        assert report["steps"] == report["done"] == plan.total_steps


def read_launch_line(command, folder, **environment):
    own = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr[-3000:]
    assert not (folder / "hacked").exists()
    return json.loads(next(line for line in process.stdout.splitlines() if line.startswith("{")))


def test_torchrun_runs_the_script_as_it_is(plan, tmp_path, torchrun):
    job = Job(name=HOSTILE, command=(str(SCRIPT), "160", "plain", HOSTILE))
    plan.to("torchrun", job=job).save(tmp_path / "launch.sh")
    report = read_launch_line(["bash", "launch.sh"], tmp_path)
    check(plan, report)
    assert report["arguments"] == [HOSTILE]


def test_accelerate_launches_by_its_file(plan, tmp_path, torchrun):
    pytest.importorskip("accelerate")
    planned = plan.to("accelerate")
    planned.save(tmp_path / "a.yaml")
    variables = dict(re.findall(r"(?m)^# export (\w+)=(.*)$", planned.text))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "a.yaml", str(SCRIPT)]
    check(plan, read_launch_line([*command, "160", "accelerated"], tmp_path, **variables))


@pytest.fixture
def torchrun(tmp_path, monkeypatch):
    """torchrun of this interpreter, whatever the path has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "torchrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    (folder / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
