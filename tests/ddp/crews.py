"""Ranks as processes around a store, to be killed, paused and joined.

And whether their run was the undisturbed one.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import combinations
from pathlib import Path

import torch

CLOSE = 1e-12


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "ddp.surviving"])  # It imports torch once for all.


def _serve(store: str, folder: Path, name: str, options: dict) -> None:
    with (folder / f"out-{name}").open("a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.setsid()
    os.environ.update(options.get("environment", {}))
    if "netns" in options:
        with open(f"/run/netns/{options['netns']}") as space:  # noqa: PTH123
            assert ctypes.CDLL(None).setns(space.fileno(), 0) == 0
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    # Its loader's workers are started as a training's are, not by a server of their own.
    multiprocessing.set_start_method("fork", force=True)
    importlib.import_module(options.get("module", "ddp.surviving")).main(store, folder, name, options)


class Ranks:
    """The processes of one run, with their store; `with Ranks(folder, options) as ranks`.

    Args:
        host: of the store, and its network namespace.
    """

    def __init__(self, folder: Path, options: dict, host: tuple[str, str] | None = None) -> None:
        self.folder, self.options, self.processes = folder, {**options}, {}
        self.host, self.space = host or ("127.0.0.1", None)
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        command = [sys.executable, "-m", "isobatch", "store", "--port", "0"]
        if self.space is not None:
            command = ["ip", "netns", "exec", self.space, *command, "--bind", self.host]
            self.options.setdefault("environment", {"ISOBATCH_RUN_KEY": "none"})
        self.store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.store.stdout.readline().split()[-1])
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.join()
        self.store.kill()
        self.store.wait()
        self.store.stdout.close()

    def start(self, name: str, **options):
        """Starts a rank."""
        asked = {**self.options, **options}
        args = f"{self.host}:{self.port}", self.folder, name, asked
        process = self.processes[name] = CONTEXT.Process(target=_serve, args=args)
        process.start()
        return process

    def signal(self, name: str, number: int) -> None:
        """Sends a rank a signal."""
        os.kill(self.processes[name].pid, number)

    def wait(self, seconds: float) -> dict[str, int | None]:
        """Waits until all have ended; each one's exit code, None where it hangs."""
        until = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.1, until - time.monotonic()))
        return {name: process.exitcode for name, process in self.processes.items()}

    def wait_for(self, what, seconds: float = 60.0) -> None:
        """Waits until a log's line is there."""
        until = time.monotonic() + seconds
        while not any(what(line) for line in lines(self.folder)):
            assert time.monotonic() < until, "what was waited for did not come"
            time.sleep(0.05)

    def said(self, name: str) -> str:
        return (self.folder / f"out-{name}").read_text()


def lines(folder: Path) -> list[dict]:
    """All whole lines of the ranks' logs, by time."""
    found = []
    for path in folder.glob("log-*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            with contextlib.suppress(json.JSONDecodeError):
                found.append({**json.loads(line), "rank_of": path.name})
    return sorted(found, key=lambda line: line["t"])


def faults(folder: Path, alone: tuple[dict, dict], *, cut_off: bool = False) -> tuple[list[str], float]:
    """What differs from the undisturbed run, or from its part up to where this one was cut off.

    And how far the weights are apart, over
    each tensor's largest value."""
    steps, weights = alone
    log = lines(folder)
    found, applied, ranks, shared = [], {}, Counter(), Counter()
    for line in log:
        if "done" in line:
            applied.setdefault(line["done"], set()).add(line["crew"])
            ranks[line["rank_of"], line["done"]] += 1
    asked = range(max(applied, default=-1) + 1) if cut_off else steps
    if missing := sorted({*asked} - {*applied}):
        found.append(f"{len(missing)} steps were not done")
    for step, crews in applied.items():
        shared.update(combinations(sorted(crews), 2))
        for crew in crews:
            took = [line for line in log if line.get("take") == step and line["crew"] == crew]
            if sorted(index for line in took for index in line["ids"]) != steps[step][0]:
                found.append(f"step {step} has other samples in crew {crew}")
            if {line["lr"] for line in took} != {steps[step][1]}:
                found.append(f"step {step} has another learning rate")
    # A rank that is lost may have done the step under way, which the next crew then does: one step, and never
    # the same rank.
    found += [f"{rank} did step {step} {times} times" for (rank, step), times in ranks.items() if times > 1]
    found += [f"crews {crews} did {count} steps both" for crews, count in shared.items() if count > 1]
    finals = [torch.load(path, map_location="cpu") for path in folder.glob("final-*.pt")]
    if not finals and not cut_off:
        found.append("no rank came to the end")
    distances = [
        _apart(final[name], whole, final.get("place"))
        for final in finals
        for name, whole in weights.items()
        if not ("place" in final and name.startswith("average"))  # A shard's file has the parameters alone.
    ]
    apart = float(torch.tensor([0.0, *distances]).max())  # NaN where one is.
    if not apart <= CLOSE:
        found.append(f"the weights are {apart:.1e} apart")
    return found, apart


def _apart(mine: torch.Tensor, whole: torch.Tensor, place: tuple[int, int] | None) -> float:
    """How far a tensor is from the undisturbed run's, or from its rows in this shard."""
    index, shards = place or (0, 1)
    rows = -(-len(whole) // shards)
    theirs = whole[index * rows : (index + 1) * rows]
    return float((mine - theirs).abs().max() / whole.abs().max()) if theirs.numel() else float(mine.numel())


def gaps(folder: Path) -> list[float]:
    """The seconds from each kill to the next step that is done by a later crew."""
    log, found = lines(folder), []
    for kill in log:
        if "kill" in kill:
            crews = [line["crew"] for line in log if "crew" in line and line["t"] <= kill["t"]]
            after = [
                line["t"]
                for line in log
                if "done" in line and line["t"] > kill["t"] and line["crew"] > max(crews)
            ]
            found += [min(after) - kill["t"]] if after else []
    return found
