"""Kills a training's nodes, adds some, and compares what is left of it with a run that nobody disturbed.

Each repetition starts four torchrun agents of one process on this machine, kills one with its worker after a
random step (3 are left), adds two (5), kills three (2), and lets the rest finish. Then it checks, over the
steps that count (those that no later start did again), that each sample of each epoch was taken exactly once
and in its step, that the learning rate at each step is the undisturbed run's bit for bit, and how far the
weights are from its.

    scripts/elastic-demo --repetitions 20 --folder /tmp/elastic
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

TRAIN = Path(__file__).with_name("train.py")
SAMPLES, EPOCHS, STEPS, CLOSE = 500, 4, 84, 1e-12


WAITS = "import torch.distributed.run as torchrun; input(); torchrun.main()"
"""An agent that joins when it is asked to: a busy machine imports torch for half a minute."""


class Stuck(Exception):
    """The run did not come to what was waited for."""


class Nodes:
    """The agents of one run, each with its worker; the first has the rendezvous, and outlives the others."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder, self._arguments = folder, arguments
        self.agents: list[subprocess.Popen[bytes]] = []
        self._waiting: list[subprocess.Popen[bytes]] = []

    def prepare(self, count: int) -> None:
        """Starts agents that import all they need, and wait."""
        for _ in range(count):
            is_host = int(not self.agents)
            patience = "last_call_timeout=5,join_timeout=200,keep_alive_interval=1,keep_alive_max_attempt=4"
            command = [sys.executable, "-c", WAITS, "--nnodes", "2:5", "--nproc-per-node", "1"]
            command += [
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                f"127.0.0.1:{self._port}",
                "--rdzv-id",
                "demo",
            ]
            command += ["--rdzv-conf", f"is_host={is_host},{patience}", "--local-addr", "127.0.0.1"]
            command += [
                "--max-restarts",
                "20",
                "--monitor-interval",
                "0.2",
                str(TRAIN),
                "--folder",
                str(self._folder),
            ]
            output = (self._folder / f"agent-{len(self.agents)}.txt").open("wb")
            settings = {
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # without it gloo does not come back
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            agent = subprocess.Popen(
                command + self._arguments,
                env={**os.environ, **settings},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
            self.agents.append(agent)
            self._waiting.append(agent)

    def start(self, count: int) -> None:
        """Lets the next agents that wait join the run."""
        for agent in self._waiting[:count]:
            assert agent.stdin is not None
            agent.stdin.write(b"go\n")
            agent.stdin.flush()
        del self._waiting[:count]

    @property
    def alive(self) -> list[subprocess.Popen[bytes]]:
        """The agents that are part of the run."""
        return [agent for agent in self.agents if agent.poll() is None and agent not in self._waiting]

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """Kills an agent and its workers, which have sessions of their own, as a failing machine does."""
        for pid in [agent.pid, *children(agent.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()

    def end(self) -> None:
        self._waiting = []
        for agent in self.alive:
            self.kill(agent)


def children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def lines(path: Path) -> Iterator[dict]:
    """The whole lines of a log: a kill may leave half of one."""
    for line in path.read_text().split("\n")[:-1]:
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def starts(folder: Path) -> list[dict[int, list[dict]]]:
    """The steps of each start of the training, in order: step → the line of each rank."""
    samples: dict[int, dict[int, list[dict]]] = {}
    for path in folder.glob("log-*.jsonl"):
        steps = samples.setdefault(int(path.name.split("-")[1]), {})
        for line in lines(path):
            steps.setdefault(line["step"], []).append(line)
    return [samples[when] for when in sorted(samples) if samples[when]]


def counting(folder: Path) -> dict[int, list[dict]]:
    """The steps that count: those that no later start did again."""
    steps: dict[int, list[dict]] = {}
    for start in starts(folder):
        steps = {**{step: ranks for step, ranks in steps.items() if step < min(start)}, **start}
    return steps


def wait(nodes: Nodes, folder: Path, replicas: int, step: int, until: float) -> None:
    """Waits until the run has done a step at a number of replicas."""
    while time.time() < until:
        processes = starts(folder)
        if processes:
            last = max(processes[-1])
            if processes[-1][last][0]["of"] == replicas and last >= step:
                return
            if last == STEPS - 1:
                raise Stuck(f"the run ended before step {step} on {replicas}")
        if len(nodes.alive) < min(replicas, 2):
            raise Stuck(f"{len(nodes.alive)} agents are left")
        time.sleep(0.1)
    raise Stuck(f"no step {step} on {replicas} replicas in time")


def disturbed(folder: Path, arguments: list[str], seed: int, limit: float) -> list[str]:
    """Runs a training on 4, 3, 5 and 2 nodes; gives what was done to it."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    nodes, until, events = Nodes(folder, arguments), time.time() + limit, []
    try:
        nodes.prepare(6)
        nodes.start(4)
        step = 0
        for replicas, change in (4, -1), (3, 2), (5, -3):
            step += draw.randint(3, 12)
            wait(nodes, folder, replicas, step, until)
            time.sleep(draw.random() * 0.2)
            if change > 0:
                nodes.start(change)
            for victim in draw.sample(nodes.alive[1:], max(0, -change)):
                nodes.kill(victim)
            step = max(starts(folder)[-1])
            events.append(f"{replicas} until {step}")
        wait(nodes, folder, 2, STEPS - 1, until)
        for _ in range(100):
            if (checkpoint(folder).get("run") or {}).get("step") == STEPS or time.time() > until:
                break
            time.sleep(0.1)
    finally:
        nodes.end()
    return events


def checkpoint(folder: Path) -> dict:
    return torch.load(folder / "checkpoint.pt")


def faults(folder: Path, alone: Path) -> tuple[list[str], float]:
    """Differences from the undisturbed run, and how far the weights are apart.

    Over each tensor's largest value.
    """
    problems = []
    counts, whole_counts = counting(folder), counting(alone)
    if [*counts] != [*range(STEPS)]:
        return [f"steps {sorted({*range(STEPS)} - {*counts})} are missing, or out of order"], float("nan")
    epoch_samples: dict[int, list[int]] = {}
    for step, ranks in counts.items():
        ids = [index for line in ranks for index in line["ids"]]
        epoch_samples.setdefault(ranks[0]["epoch"], []).extend(ids)
        if len(ranks) != ranks[0]["of"]:
            problems.append(f"step {step} has {len(ranks)} ranks of {ranks[0]['of']}")
        if sorted(ids) != sorted(whole_counts[step][0]["ids"]):
            problems.append(f"step {step} has other samples")
        if {line["lr"] for line in ranks} != {whole_counts[step][0]["lr"]}:
            problems.append(f"step {step} has another learning rate")
    wrong = [epoch for epoch in range(EPOCHS) if sorted(epoch_samples.get(epoch, [])) != [*range(SAMPLES)]]
    problems += [f"epoch {epoch} has not each sample once" for epoch in wrong]
    weights, whole_weights = (checkpoint(path)["model"] for path in (folder, alone))
    apart = max(
        float((weights[name] - whole_weights[name]).abs().max() / whole_weights[name].abs().max())
        for name in whole_weights
    )
    if not apart <= CLOSE:
        problems.append(f"the weights are {apart:.1e} apart")
    return problems, apart


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the runs' logs and checkpoints go")
    parser.add_argument("--repetitions", type=int, default=2, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first repetition's seed")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for one repetition")
    parser.add_argument("--pause", default="0.3", metavar="SECONDS", help="that each step lasts longer")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no agent outlives this
    bad = 0
    for repetition in range(args.first, args.first + args.repetitions):
        kind = ["--tokens"] if repetition % 2 else []
        alone = args.folder / ("alone-tokens" if kind else "alone")
        if not (alone / "checkpoint.pt").exists():
            subprocess.run([sys.executable, TRAIN, "--folder", alone, *kind], check=True, timeout=args.limit)
        folder, begun = args.folder / f"run-{repetition}", time.time()
        try:
            events = disturbed(folder, [*kind, "--pause", args.pause], repetition, args.limit)
            problems, apart = faults(folder, alone)
        except Stuck as error:
            events, problems, apart = [], [str(error)], float("nan")
        bad += bool(problems)
        unit = "tokens" if kind else "samples"
        again = sum(len(start) for start in starts(folder)) - STEPS
        line = (
            f"{repetition}: weights by {unit}; {', '.join(events)}; {len(starts(folder))} starts, {again} "
            "steps done again; "
        )
        print(
            f"{line}weights {apart:.1e} apart; {time.time() - begun:.0f} s; {'; '.join(problems) or 'equal'}",
            flush=True,
        )
    print(f"{args.repetitions - bad} of {args.repetitions} equal")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
