"""Ranks as processes around a store, to be killed, paused and joined: their run is the undisturbed one."""

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
    """The processes of one run, with their store, on a host with a network namespace."""

    def __init__(self, folder: Path, options: dict, host: tuple[str, str] | None = None) -> None:
        self.folder, self.options, self.processes = folder, {**options}, {}
        self.host, self.space = host or ("127.0.0.1", None)
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        command = [sys.executable, "-m", "isobatch", "store", "--port", "0"]
        if self.space is not None:
            command = ["ip", "netns", "exec", self.space, *command, "--bind", self.host, "--open"]
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
        settings = {**self.options, **options}
        args = f"{self.host}:{self.port}", self.folder, name, settings
        process = self.processes[name] = CONTEXT.Process(target=_serve, args=args)
        process.start()
        return process

    def start_all(self, kills: dict | None = None, each: dict | None = None, **options) -> None:
        """Starts the ranks of the first crew; some are killed, or have options of their own."""
        for rank in range(self.options["ranks"]):
            own = {
                "kills": (kills or {}).get(rank, []),
                "seed": rank,
                **options,
                **(each or {}).get(rank, {}),
            }
            self.start(f"r{rank}", **own)

    def signal(self, name: str, number: int) -> None:
        """Sends a rank a signal."""
        os.kill(self.processes[name].pid, number)

    def wait(self, seconds: float) -> dict[str, int | None]:
        """Waits until all have ended; each one's exit code, None where it hangs."""
        until = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.1, until - time.monotonic()))
        return {name: process.exitcode for name, process in self.processes.items()}

    def finish(
        self, alone: tuple[dict, dict], expected: dict[str, int], seconds: float = 150.0
    ) -> list[tuple]:
        """Waits until all have ended, in the undisturbed run; returns each crew's number, size and step."""
        codes = self.wait(seconds)
        assert codes == expected, [self.said(name) for name in codes]
        assert faults(self.folder, alone)[0] == []
        return [*dict.fromkeys((line["crew"], line["of"], line["at"]) for line in self.lines if "at" in line)]

    @property
    def lines(self) -> list[dict]:
        return lines(self.folder)

    def wait_for(self, is_awaited, seconds: float = 60.0) -> None:
        """Waits until a log's line is there."""
        until = time.monotonic() + seconds
        while not any(map(is_awaited, self.lines)):
            assert time.monotonic() < until, "what was waited for did not come"
            time.sleep(0.05)

    def said(self, name: str) -> str:
        return (self.folder / f"out-{name}").read_text()


def lines(folder: Path) -> list[dict]:
    """All whole lines of the ranks' logs, by time."""
    rows = []
    for path in folder.glob("log-*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            with contextlib.suppress(json.JSONDecodeError):
                rows.append({**json.loads(line), "rank_of": path.name})
    return sorted(rows, key=lambda line: line["t"])


def faults(folder: Path, alone: tuple[dict, dict], *, cut_off: bool = False) -> tuple[list[str], float]:
    """Compares a run with the undisturbed one, or with its part up to where this one was cut off; returns the
    differences, and how far the weights are apart, over each tensor's largest value."""
    steps, weights = alone
    log = lines(folder)
    differences, applied, ranks, shared = [], {}, Counter(), Counter()
    for line in log:
        if "done" in line:
            applied.setdefault(line["done"], set()).add(line["crew"])
            ranks[line["rank_of"], line["done"]] += 1
    expected = range(max(applied, default=-1) + 1) if cut_off else steps
    if missing := sorted({*expected} - {*applied}):
        differences.append(f"{len(missing)} steps were not done")
    for step, crews in applied.items():
        shared.update(combinations(sorted(crews), 2))
        for crew in crews:
            took = [line for line in log if line.get("take") == step and line["crew"] == crew]
            if sorted(index for line in took for index in line["ids"]) != steps[step][0]:
                differences.append(f"step {step} has other samples in crew {crew}")
            if {line["lr"] for line in took} != {steps[step][1]}:
                differences.append(f"step {step} has another learning rate")
    # A rank that is lost may have done the step under way, which the next crew then does: one step, and never
    # the same rank.
    differences += [
        f"{rank} did step {step} {count} times" for (rank, step), count in ranks.items() if count > 1
    ]
    differences += [f"crews {crews} did {count} steps both" for crews, count in shared.items() if count > 1]
    finals = [torch.load(path, map_location="cpu") for path in folder.glob("final-*.pt")]
    if not finals and not cut_off:
        differences.append("no rank came to the end")
    distances = [
        _apart(final[name], whole, final.get("place"))
        for final in finals
        for name, whole in weights.items()
        if not ("place" in final and name.startswith("average"))  # A shard's file has the parameters alone.
    ]
    apart = float(torch.tensor([0.0, *distances]).max())  # NaN where one is.
    if not apart <= CLOSE:
        differences.append(f"the weights are {apart:.1e} apart")
    return differences, apart


def _apart(part: torch.Tensor, whole: torch.Tensor, place: tuple[int, int] | None) -> float:
    """Returns how far a tensor is from the undisturbed run's, or from its rows in this shard."""
    index, shards = place or (0, 1)
    rows = -(-len(whole) // shards)
    rows_of_shard = whole[index * rows : (index + 1) * rows]
    if not rows_of_shard.numel():
        return float(part.numel())
    return float((part - rows_of_shard).abs().max() / whole.abs().max())


def gaps(folder: Path) -> list[float]:
    """Returns the seconds from each kill to the next step of a later crew."""
    log, seconds = lines(folder), []
    for kill in (line for line in log if "kill" in line):
        crew = max(line["crew"] for line in log if "crew" in line and line["t"] <= kill["t"])
        after = [
            line["t"] for line in log if "done" in line and line["crew"] > crew and line["t"] > kill["t"]
        ]
        seconds += [min(after) - kill["t"]] if after else []
    return seconds
