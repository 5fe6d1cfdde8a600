"""Starts that fork, beside those that do not."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from equivalence import in_code
from isobatch.equivalence import session
from isobatch.equivalence.commands import runs
from isobatch.equivalence.commands.forks import ForkedStart, read_libraries, read_start
from isobatch.equivalence.commands.runs import Recorded, end_server, read_modules, start_run, start_server
from isobatch.equivalence.split import Split
from isobatch.launch.command_line import CPU

LOOP = Path(__file__).with_name("loop.py")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="starts fork on Linux alone")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([sys.executable, "-u", str(LOOP), "--x"], ((str(LOOP), "--x"), False, None)),
        ([sys.executable, "-m", "json.tool"], (("json.tool",), True, None)),
        ([*TORCHRUN, str(LOOP), "1"], ((str(LOOP), "1"), False, 2)),
        ([*TORCHRUN, "-m", "json.tool"], (("json.tool",), True, 2)),
        ([*TORCHRUN, "--no-python", sys.executable, str(LOOP)], ((str(LOOP),), False, 2)),
    ],
)
def test_python_and_torchrun_can_fork(words, start):
    assert read_start(words) == ForkedStart(sys.executable, *start)


@pytest.mark.parametrize(
    "words",
    [
        [sys.executable, "-O", str(LOOP)],
        [sys.executable, "-c", "pass"],
        [sys.executable, "gone.py"],
        ["bash", "run.sh"],
        ["nohup", sys.executable, str(LOOP)],
        [*TORCHRUN, "--tee", "3", str(LOOP)],
        [*TORCHRUN, "--no-python", "bash", "run.sh"],
    ],
)
def test_unusual_commands_start_as_typed(words):
    assert read_start(words) is None


def test_a_scripts_libraries_are_read_from_its_text(tmp_path):
    script = tmp_path / "train.py"
    (tmp_path / "utils.py").touch()
    script.write_text(
        "import os\nrank = os.environ['RANK'], os.environ.get('X')\n"
        "import json.tool\nimport numpy as np, utils\nfrom torch import nn\nfrom torch.utils.data import *\n"
        "import utils.data\nfrom . import mine\nnp.random.seed(0)\ndef later():\n    import lightning\n"
    )
    names = ["os:", "json.tool:", "numpy:", "torch:nn", "torch.utils.data:", "os:environ", "numpy:random"]
    assert read_libraries(script) == names


@pytest.mark.parametrize(
    "text",
    [
        "import os, torch\nos.environ['X'] = '1'",
        "from os import environ\nimport torch\nenviron.setdefault('X', '1')",
        "import os, torch\nos.putenv('X', '1')",
        "import torch (",
    ],
)
def test_a_script_that_sets_its_environment_starts_as_typed_first(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert read_libraries(tmp_path / "train.py") == []


@pytest.mark.parametrize("fails", [False, True])
def test_each_run_is_a_fork_and_as_typed_where_that_fails(tmp_path, monkeypatch, fails):
    script = tmp_path / "train.py"
    refusal = "if os.getppid() != int(open('parent').read()): raise SystemExit('a fork')\n" if fails else ""
    script.write_text(in_code.HEAD + refusal + in_code.BY_HAND)
    (tmp_path / "parent").write_text(str(os.getpid()))
    monkeypatch.chdir(tmp_path)
    typed, popen = [], runs.subprocess.Popen
    monkeypatch.setattr(
        runs.subprocess, "Popen", lambda *words, **options: typed.append(words) or popen(*words, **options)
    )
    answer = session.same([sys.executable, "train.py", "{micro_batch}", "{accumulation}"], ["1x4x2", "1x2x4"])
    assert (answer.same, len(typed) > 1) == (True, fails)


def both(tmp_path, words, split):
    """Runs a command as typed, and forked from what the first has imported."""
    settings = Recorded(str(tmp_path / "plain" / "record"), 2, split=split)
    plain = start_run(words, CPU, settings, split, 300)
    assert plain.recording is not None, plain.output
    server = start_server(words, CPU, settings, read_modules(settings))
    assert server is not None
    try:
        assert server.is_ready(), server.odd
        forked = Recorded(str(tmp_path / "forked" / "record"), 2, split=split)
        run = start_run(words, CPU, forked, split, 300, server)
        assert run.recording is not None, run.output
    finally:
        end_server(server)
    assert not runs._RUNNING and server.process.poll() is not None
    return plain.recording, run.recording


def assert_equal(plain, forked):
    for event, step in plain.steps.items():
        fork = forked.steps[event]
        np.testing.assert_array_equal(step.gradients, fork.gradients)
        np.testing.assert_array_equal(step.weights, fork.weights)
        assert step.hashes == fork.hashes
        assert [rank.groups for rank in step.ranks] == [rank.groups for rank in fork.ranks]
        assert step.first.notes == fork.first.notes


def test_ranks_of_a_fork_record_what_those_of_torchrun_do(tmp_path):
    words = [*TORCHRUN, str(LOOP), "--micro", "2", "--accum", "2"]
    assert_equal(*both(tmp_path, words, Split(2, 2, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TRAINER", "ACCELERATE", "LIGHTNING"])
def test_a_trainers_fork_records_what_a_start_as_typed_does(tmp_path, name):
    path = tmp_path / "train.py"
    path.write_text(in_code.HEAD + getattr(in_code, name))
    assert_equal(*both(tmp_path, [sys.executable, str(path)], Split(1, 4, 2)))


def test_a_script_named_in_its_folder_keeps_the_names_of_its_lines(tmp_path, monkeypatch):
    """Rows that a loop draws itself, and the seeds of its draws, are kept by file and line."""
    (tmp_path / "train.py").write_text(in_code.HEAD + in_code.BY_HAND)
    monkeypatch.chdir(tmp_path)
    plain, forked = both(tmp_path, [sys.executable, "train.py", "2", "4"], Split(1, 4, 2))
    lines, drawn = plain.last.ranks[0].indices, forked.last.ranks[0].indices
    assert lines and lines.keys() == drawn.keys()


def test_a_module_that_starts_a_thread_is_not_forked(tmp_path, monkeypatch):
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    words = [sys.executable, str(LOOP)]
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "modules.json").write_text('["json", "starts_a_thread"]')
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    settings = Recorded(str(tmp_path / "record"), 1)
    server = start_server(words, CPU, settings, read_modules(settings))
    assert server is not None
    try:
        assert not server.is_ready() and "starts a thread" in server.odd
    finally:
        end_server(server)
