"""Ends from outside, and texts too long to repeat."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import isobatch.cli.explain


class Ended(Exception):
    """As torch raises it while it watches ranks."""

    sigval = signal.SIGTERM


def test_a_signal_is_no_fault_of_ours(monkeypatch, ran):
    def run(args):
        raise Ended("Process 1 got signal: 15")

    monkeypatch.setattr(isobatch.cli.explain, "run", run)
    assert "fault" not in ran(["explain", "--rules"], 128 + 15).err


def test_a_long_text_is_cut(ran):
    output = ran(["plan", "--gpus", "8", "--max-batch", "9" * 5000], 2).err
    assert "--max-batch must be a whole number, got '999" in output and len(output) < 300


ENDING = """
import atexit, sys, threading
from isobatch.cli.terminal import leave

class Noticed:
    def __del__(self):
        print("taken apart", flush=True)

kept = Noticed()
kept.itself = kept
atexit.register(lambda: print("registered"))
print("said")
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("sys.modules['torch'] = None; leave(7)", ["said", "registered"]),
        # A command without torch ends as Python does, and so does one of which a thread is not done.
        ("leave(7)", ["said", "registered", "taken apart"]),
        (
            "sys.modules['torch'] = None\n"
            "threading.Thread(target=lambda: (threading.main_thread().join(), print('worked'))).start(); "
            "leave(7)",
            ["said", "worked", "registered", "taken apart"],
        ),
    ],
    ids=["torch", "none", "thread"],
)
def test_torch_is_not_taken_apart_in_the_end(more, message):
    process = subprocess.run([sys.executable, "-c", ENDING + more], capture_output=True, text=True)
    assert process.returncode == 7, process.stderr
    assert process.stdout.splitlines() == message


def test_a_full_device_is_reported_at_the_end():
    """Python's own end, also after a command with torch."""
    program = "import sys; sys.modules['torch'] = None; from isobatch.cli.terminal import leave; "
    program += "print('said'); leave(0)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program]
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert process.returncode == 120
    assert "No space left" in process.stderr
