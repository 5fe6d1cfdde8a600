"""Commands are started: with the split's ranks and numbers, two at a time on their own ports."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isobatch.equivalence.bits import same_bits
from isobatch.equivalence.commands.command import read_command, start_line
from isobatch.equivalence.commands.running import observe
from isobatch.equivalence.commands.runs import Recorded, run_both, start_run
from isobatch.equivalence.session import same
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.launch.command_line import CPU

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


LOOP = Path(__file__).with_name("loop.py")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are listed by /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_process(tmp_path, number):
    """Ranks write their pids and wait; the first run is a fork."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "{gpus}", str(LOOP)]
    words += ["--micro", "{micro_batch}", "--accum", "{accumulation}", "--fault", "hangs"]
    words += ["--mark", str(tmp_path / "pids")]
    with subprocess.Popen(
        [sys.executable, "-m", "isobatch", "same", "--split", "2x2x2", "--", *words]
    ) as question:
        try:
            deadline = time.monotonic() + 240
            while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
                assert time.monotonic() < deadline and question.poll() is None
                time.sleep(0.2)
            question.send_signal(number)
            assert question.wait(60) == 128 + number
        finally:
            question.kill()
    assert not any(map(is_running, map(int, (tmp_path / "pids").read_text().split())))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torchrunn", "--nproc-per-node", "{gpus}", "t.py"], "torchrunn: command not found"),
        (["pyton", "t.py", "--per_device_train_batch_size", "2"], "pyton: command not found"),
        (["./gone.sh"], r"\./gone\.sh: no such file or directory"),
        (["env", "PATH=/nowhere", "torchrun", "t.py"], "torchrun: command not found: install torch first"),
    ],
)
def test_a_command_that_is_not_there_is_named_as_a_shell_does(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for ask in (same, observe, same_bits):
        with pytest.raises(InputError, match=f"^{message}$"):
            ask(words)
    (tmp_path / "plain.sh").write_text("exit 0")
    with pytest.raises(InputError, match="permission denied"):
        same(["./plain.sh", "{micro_batch}", "{accumulation}"])


def test_a_run_says_what_it_wrote_and_what_it_continued(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(WRITES)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "log.txt").write_text("worth keeping")
    settings = Recorded(str(tmp_path / "record"), 1)
    run = start_run([sys.executable, str(path), str(tmp_path)], CPU, settings, Split(1, 1, 2), 120)
    assert run.recording is not None, run.output
    notes = {note for note in run.recording.changes if "written" in note or "continued" in note}
    assert notes == {
        "new written by the script",
        "old written over what was there",
        "continued from a checkpoint",
    }


def port_script(folder: Path, port: int) -> list[str]:
    """Writes a script that binds a port of its own, as one with a fixed MASTER_PORT does."""
    script = folder / "train.py"
    script.write_text(
        f"import socket, time\nserver = socket.socket()\nserver.bind(('127.0.0.1', {port}))\n{BUSY}"
    )
    return [sys.executable, str(script)]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1] // 2  # below those that Linux chooses itself


BUSY = """
time.sleep(3)
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for rows in torch.utils.data.DataLoader(torch.randn(8, 3), 2):
    model(rows).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_two_runs_at_once_that_want_one_port_the_second_is_started_again(tmp_path):
    words = port_script(tmp_path, free_port())

    def starter(name: str):
        settings = Recorded(str(tmp_path / name), 1)
        return lambda: start_run(words, CPU, settings, Split(1, 1, 2), 120)

    for run in run_both(starter("first"), starter("second")):
        assert not run.failed, run.output
    assert not starter("third")().failed


@pytest.mark.slow
def test_a_script_with_a_port_of_its_own_is_compared_with_another_environment(tmp_path):
    answer = same(port_script(tmp_path, free_port()), against_python=sys.executable, steps=1)
    assert answer.same, answer.text


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells which ports are in TIME_WAIT")
def test_a_port_in_time_wait_is_waited_for(tmp_path):
    port = free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            client.recv(1)
    run = start_run(port_script(tmp_path, port), CPU, Recorded(str(tmp_path / "run"), 1), Split(1, 1, 2), 120)
    assert not run.failed, run.output


WRITES = """
import os, sys
os.chdir(sys.argv[1])
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
os.mkdir("new")
for name in ("new/log.txt", "new/more.txt", "old/log.txt"):
    open(name, "w").write("a run")
optimizer.load_state_dict(optimizer.state_dict())  # an empty state is no checkpoint
state = optimizer.state_dict() | {"state": {0: {"momentum_buffer": torch.zeros(1, 3)}}}
optimizer.load_state_dict(state)
model(torch.randn(2, 3)).mean().backward()
optimizer.step()
"""
