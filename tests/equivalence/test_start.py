"""Commands that really start: as many ranks, with the numbers of the split, two at a time on ports of their own."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from isobatch.equivalence.command import read_command, start_line
from isobatch.equivalence.runs import RECORDER
from isobatch.equivalence.split import Split

pytest.importorskip("torch")

SCRIPT = """
import json, os, sys
import torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    dist.barrier()
if os.environ.get("RANK", "0") == "0":
    print(json.dumps([os.environ.get("WORLD_SIZE", "1"), sys.argv[1:], sys.flags.optimize, os.environ["OMP_NUM_THREADS"]]))
"""
FLAGS = "--per_device_train_batch_size 8 --num_train_epochs 1"


def start(line, split, folder):
    words, environment = start_line(read_command(shlex.split(line)), split, folder)
    return subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def test_launchers_start_the_ranks_and_the_numbers_of_a_split(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    starts = [
        start(f"accelerate launch --num_processes 4 {script} {FLAGS}", Split(2, 3, 4), tmp_path),
        start(f"python -O {script} {FLAGS}", Split(2, 3, 4), tmp_path),
        start(f"python -O {script} {FLAGS}", Split(1, 3, 4), tmp_path),
    ]
    seen = [json.loads(process.communicate(timeout=120)[0]) for process in starts]
    numbers = shlex.split(
        "--per_device_train_batch_size 4 --num_train_epochs 1 --gradient_accumulation_steps 3"
    )
    assert [process.returncode for process in starts] == [0] * 3
    assert seen == [
        ["2", numbers, 0, "1"],
        ["2", numbers, 0, "1"],
        ["2", numbers, 1, "1"],
        ["1", numbers, 1, "1"],
    ]


def test_torch_is_recorded_where_another_package_looked_for_it_first():
    """transformers asks whether there is torch, with the same finder, before the script imports it."""
    script = "import importlib.util as util; util.find_spec('torch'); import torch"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(RECORDER), "ISOBATCH_SAME": "{}"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "KeyError: 'folder'" in done.stderr  # the recorder began, and lacks its settings
