"""Commands are started: with the split's ranks and numbers, two at a time on their own ports."""

import json
import os
import shlex
import subprocess

import pytest

from isobatch.equivalence.command import read_command, start_line
from isobatch.equivalence.split import Split

pytest.importorskip("torch")

SCRIPT = """
import json, os, sys
import torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    dist.barrier()
if os.environ.get("RANK", "0") == "0":
    world, threads = os.environ.get("WORLD_SIZE", "1"), os.environ["OMP_NUM_THREADS"]
    print(json.dumps([world, sys.argv[1:], sys.flags.optimize, threads]))
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
    environments = [json.loads(process.communicate(timeout=120)[0]) for process in starts]
    numbers = shlex.split(
        "--per_device_train_batch_size 4 --num_train_epochs 1 --gradient_accumulation_steps 3"
    )
    assert [process.returncode for process in starts] == [0] * 3
    assert environments == [["2", numbers, 0, "1"], ["2", numbers, 1, "1"], ["1", numbers, 1, "1"]]
