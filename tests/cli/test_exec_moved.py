"""torchrun moves a run to other numbers of processes: with `isobatch exec` its steps stay the same.

The scripts know nothing of isobatch: only the line that starts them does.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the scripts train with it")

SCRIPTS = Path(__file__).parent / "exec_scripts"
STEPS = 24
RECIPE = f'effective_batch = 12\nlr = 0.05\ndataset_size = 96\nduration = "{STEPS}st"\nwarmup = "4st"\n'
PATIENCE = "last_call_timeout=2,join_timeout=200,keep_alive_interval=1,keep_alive_max_attempt=4"
LOOP = ("loop.py", "--bs", "{micro_batch}", "--accum", "{accumulation}", "--lr", "{lr}", "--steps",
    "{total_steps}", "--warmup", "{warmup_steps}", "--folder", ".", "--pause", "0.8")  # fmt: skip
TRAINER = ("trainer.py", "--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps",
    "{accumulation}", "--learning_rate", "{lr}", "--max_steps", "{total_steps}", "--warmup_steps",
    "{warmup_steps}", "--output_dir", "out", "--save_steps", "2", "--use_cpu", "--report_to", "none",
    "--remove_unused_columns", "False")  # fmt: skip


def settings():
    """The environment of a start: on the CPU, over the loopback, with slow steps."""
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, "PAUSE": "0.8", "CUDA_VISIBLE_DEVICES": ""}


def line(folder, script, *words, options=()):
    """The words of `isobatch exec` in front of a script."""
    (folder / "job.toml").write_text(RECIPE)
    command = [sys.executable, str(SCRIPTS / script), *words]
    words = ["-m", "isobatch", "exec", "job.toml", "--max-micro-batch", "4", *options]
    return [sys.executable, *words, "--", *command]


def undisturbed(folder, script):
    """The run of one process alone."""
    words = line(folder, *script, options=("--gpus", "1"))
    subprocess.run(words, check=True, env={**settings(), "PAUSE": "0"}, cwd=folder, timeout=300)


WAITS = "import torch.distributed.run as torchrun; input(); torchrun.main()"
"""An agent that joins when it is asked to: a busy machine imports torch for half a minute."""


class Agents:
    """torchrun on this machine: each agent is a node of one process, and the first has the rendezvous."""

    def __init__(self, folder, most, count, command):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.agents = folder, []
        words = ["--nnodes", f"1:{most}", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "moved", "--local-addr", "127.0.0.1"]
        words += ["--max-restarts", "9", "--monitor-interval", "0.2"]
        self.waiting = [self._prepared(at, words, command) for at in range(count)]

    def _prepared(self, at, words, command):
        """Starts an agent up to its imports."""
        words = [*words, "--rdzv-conf", f"is_host={int(at == 0)},{PATIENCE}", "--no-python", *command]
        with (self.folder / f"agent-{at}.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-c", WAITS, *words],
                env=settings(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )

    def start(self):
        """Lets the next waiting agent join the run."""
        agent = self.waiting.pop(0)
        agent.stdin.write(b"go\n")
        agent.stdin.close()
        self.agents.append(agent)

    def end(self):
        for agent in (*self.agents, *self.waiting):
            if agent.poll() is None:
                self.kill(agent)
            agent.stdin.close()

    def kill(self, agent):
        """Kills an agent and its worker, as a failing machine does."""
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
        workers = children.read_text().split() if children.exists() else ()
        for pid in (agent.pid, *map(int, workers)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()

    def until(self, world, steps, seconds=240):
        """Waits until a start on this many processes has done so many steps."""
        end = time.monotonic() + seconds
        while sum(rows[0][3] == world for rows in steps_of(self.folder).values()) < steps:
            texts = "".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("agent-*")))
            assert time.monotonic() < end and self.agents[0].poll() is None, texts
            time.sleep(0.3)


def steps_of(folder):
    """Returns step → the rows of all ranks in its last start."""
    steps = defaultdict(list)
    for path in sorted(folder.glob("log-*.jsonl")):
        for text in path.read_text().split("\n")[:-1]:
            row = json.loads(text)
            if steps[row[0]] and len(steps[row[0]]) >= steps[row[0]][0][3]:
                steps[row[0]] = []  # done again
            steps[row[0]].append(row)
    return steps


def compared(folder):
    """Returns step → (samples, rates)."""
    return {
        step: (sorted(sample for row in rows for sample in row[1]), {row[2] for row in rows})
        for step, rows in sorted(steps_of(folder).items())
    }


@pytest.mark.slow
@pytest.mark.parametrize("script", [LOOP, TRAINER], ids=["loop", "trainer"])
@pytest.mark.parametrize("counts", [(2, 1, 2), (4, 2, 3)])
def test_each_step_is_the_undisturbed_runs(tmp_path, script, counts):
    moved, alone = tmp_path / "moved", tmp_path / "alone"
    moved.mkdir()
    alone.mkdir()
    joins = counts[0] + sum(max(0, after - before) for before, after in itertools.pairwise(counts))
    agents = Agents(moved, max(counts), joins, line(moved, *script))
    try:
        for at, count in enumerate(counts):
            alive = [agent for agent in agents.agents if agent.poll() is None]
            for agent in alive[count:]:
                agents.kill(agent)
            for _ in range(count - len(alive)):
                agents.start()
            if at < len(counts) - 1:
                agents.until(count, 4)
        assert agents.agents[0].wait(300) == 0, (moved / "agent-0.txt").read_text()[-3000:]
    finally:
        agents.end()
    undisturbed(alone, script)

    steps, worlds = compared(moved), [rows[0][3] for _, rows in sorted(steps_of(moved).items())]
    assert [*dict.fromkeys(worlds)] == [*dict.fromkeys(counts)] and worlds[-1] == counts[-1]
    assert [*steps] == [*range(STEPS)]
    assert {len(samples) for samples, _ in steps.values()} == {12}
    assert steps == compared(alone)
    weights, expected = (torch.load(folder / "checkpoint.pt")["net"] for folder in (moved, alone))
    assert all(torch.allclose(weights[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)
