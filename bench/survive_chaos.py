"""Kills, pauses and joins ranks of a surviving run at random, and compares it with the undisturbed run.

    python bench/survive_chaos.py --runs 40 --folder /tmp/chaos
    python bench/survive_chaos.py --runs 10 --folder /tmp/chaos --shards 2      # 3 replicas of 2 ranks
    python bench/survive_chaos.py --runs 10 --folder /tmp/chaos --hosts --disk  # as root: namespaces, a tmpfs

A run starts on 4 ranks. Every half second or so one to three ranks are killed (SIGKILL) or one is paused past
its lease and woken (SIGSTOP, SIGCONT), at any moment, forming and healing included, and others are started.
One replica that holds the state is always left. Every fifth run has loaders with workers, every third one
chunks (its weights must be equal to the last bit), every fourth a GradScaler, every seventh more ranks than
fit its batch, every second a stranger without the key, who writes, replays and deletes what is in the store.
A run that --limit ends while it still makes progress is cut off: neither equal nor wrong, and compared up to
there. One that makes none, and does not end, hangs. With --hosts each rank is on one of four hosts with links
of their own (network namespaces), and a link is taken down for a while. With --disk checkpoints are written
to a disk that is full now and then, which ends the rank that writes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ddp import surviving
from ddp.crews import Ranks, faults, gaps, lines
from ddp.hosts import NETWORK, Hosts
from ddp.stranger import Poisoner, Stranger
from isobatch.elastic.messages import Seal

OPTIONS = {
    "ranks": 4,
    "min_ranks": 1,
    "lease": 3.0,
    "timeout": 60.0,
    "steps": 300,
    "pause": 0.02,
    "check": True,
}


SMALL = {"recipe": {"effective_batch": 3}, "ranks": 3}
KEY = "the-key-of-this-run-alone"
HOSTS = 4


def options_of(seed: int, shards: int) -> dict[str, Any]:
    """Gives the options of a run."""
    options = {**OPTIONS, "inside": seed % 2 == 1, "workers": int(seed % 5 == 4), "shards": shards}
    if shards > 1:
        return options | {"ranks": 3 * shards, "min_ranks": shards, "timeout": 20.0}
    options |= {"chunk": 3} if seed % 3 == 1 else {}
    options |= {"scaler": True} if seed % 4 == 2 else {}
    options |= SMALL | {"chunk": None} if seed % 7 == 3 else {}
    return options | ({"environment": {"ISOBATCH_RUN_KEY": KEY}} if seed % 2 == 0 else {})


def named(options: dict[str, Any]) -> str:
    """Names what is unlike other runs in one."""
    names = {
        "with a worker": options["workers"],
        f"chunk={options.get('chunk')}": options.get("chunk"),
        "GradScaler": options.get("scaler"),
        "3 of more ranks fit": "recipe" in options,
        "a stranger": "environment" in options,
    }
    return ", ".join(name for name, holds in names.items() if holds)


class Chaos:
    """The disturbances of one run."""

    def __init__(self, ranks: Ranks, draw: random.Random, hosts: Hosts | None, disk: Path | None) -> None:
        self.ranks, self.draw, self.hosts, self.disk = ranks, draw, hosts, disk
        self.paused: dict[str, float] = {}
        self.woken: dict[str, int] = {}
        self.dead: set[str] = set()
        self.counts = dict.fromkeys(("kills", "pauses", "cuts", "full", "joins"), 0)
        self.held: list[tuple[str, float, list[int]]] = []
        self.link: tuple[int, float] | None = None
        self.shards = ranks.options["shards"]

    def start(self, name: str, **options: int) -> None:
        """Starts a rank, on the next host."""
        if self.hosts is not None:
            options["netns"] = f"{self.hosts.name}-h{1 + len(self.ranks.processes) % HOSTS}"
        self.ranks.start(name, **options)

    def alive(self) -> list[str]:
        return [
            name
            for name, process in self.ranks.processes.items()
            if process.exitcode is None and name not in self.dead
        ]

    def last(self) -> tuple[int, dict[str, int]]:
        """The last crew that was seen, and its ranks by name."""
        log = [line for line in lines(self.ranks.folder) if "at" in line]
        number = max((line["crew"] for line in log), default=-1)
        return number, {line["rank_of"].split("-")[1]: line["rank"] for line in log if line["crew"] == number}

    def exposed(self) -> list[str]:
        """The ranks of the last crew that are alive, but for one replica and those paused or just woken."""
        number, ranks = self.last()
        out = {*self.paused, *(name for name, crew in self.woken.items() if crew >= number)}
        crew_ranks = {name: ranks[name] for name in self.alive() if name in ranks and name not in out}
        replicas = Counter(rank // self.shards for rank in crew_ranks.values())
        whole = [replica for replica, count in replicas.items() if count == self.shards]
        stays = self.draw.choice(whole) if whole else None
        return [name for name, rank in crew_ranks.items() if whole and rank // self.shards != stays]

    def event(self) -> None:
        """Does one thing."""
        self.relent()
        exposed = self.exposed()
        chance = self.draw.random()
        if chance < 0.5 and exposed:
            for name in self.draw.sample(exposed, min(self.draw.choice((1, 1, 2, 3)), len(exposed))):
                self.ranks.processes[name].kill()
                self._note("kills", kill=name)
                self.dead.add(name)
                time.sleep(self.draw.choice((0.0, 0.0, 0.05, 0.2)))
        elif chance < 0.6 and exposed and not self.paused:
            name = self.draw.choice(exposed)
            self.ranks.signal(name, signal.SIGSTOP)
            self.paused[name] = time.monotonic() + self.draw.choice((1.0, 5.0, 8.0))
            self._note("pauses", pause=name)
        elif chance < 0.7 and self.hosts is not None and self.link is None:
            self.link = self.draw.randint(1, HOSTS), time.monotonic() + self.draw.choice((1.0, 5.0, 8.0))
            self.hosts.cut(self.link[0])
            self._note("cuts", cut=self.link[0])
        elif chance < 0.75 and self.disk is not None and exposed:
            self.fill()
        for _ in range(
            self.shards if len(self.alive()) < self.shards * self.draw.choice((2, 3, 4, 5)) else 0
        ):
            self.start(f"j{self.counts['joins'] + 1}")
            self.counts["joins"] += 1

    def weigh(self) -> None:
        """Counts the threads and file descriptors of each rank."""
        for name in self.alive():
            process = Path(f"/proc/{self.ranks.processes[name].pid}")
            with suppress(OSError):
                count = [len([*(process / folder_name).iterdir()]) for folder_name in ("task", "fd")]
                self.held.append((name, time.time(), count))

    def growth(self) -> str:
        """The least in the first and the last crew of the rank counted longest in crews of one size."""
        log = [line for line in lines(self.ranks.folder) if "crew" in line]
        sizes = {line["crew"]: line["of"] for line in log if "at" in line}
        least: dict[tuple[str, int], dict[int, list[int]]] = {}
        for name, when, count in self.held:
            own = [line for line in log if line["rank_of"].split("-")[1] == name]
            at = bisect(own, when, key=lambda line: line["t"])
            if (
                0 < at < len(own)
                and own[at - 1]["crew"] == (crew := own[at]["crew"])
                and "at" not in own[at - 1]
            ):
                of_size = least.setdefault((name, sizes[crew]), {})
                of_size[crew] = [*map(min, count, of_size.get(crew, count))]
        longest = max(least.values(), key=lambda crews: max(crews) - min(crews), default=None)
        if longest is None:
            return "no threads counted"
        first, last = min(longest), max(longest)
        threads, files = zip(longest[first], longest[last], strict=True)
        crews = last - first + 1
        return f"threads {threads[0]}–{threads[1]}, descriptors {files[0]}–{files[1]} over {crews} crews"

    def finish(self) -> bool:
        """Waits until all have ended, or hang; True where the run, still in progress, was cut off."""
        options, begun = self.ranks.options, time.time()
        longest = (
            2 * options["timeout"] + options["lease"] + 10
        )  # Ranks wait so long for those who are silent.
        while self.alive():
            log = lines(self.ranks.folder)
            moved = max((line["t"] for line in log if "done" in line), default=0.0)
            idle = time.time() - max(begun, moved)
            if idle > longest:
                return False
            if (
                time.time() > begun + 60
                and idle < 5
                and moved > begun
                and not any("ended" in line for line in log)
            ):
                return True
            time.sleep(1)
        return False

    def fill(self) -> None:
        """Fills the disk until a rank could not write: it dies, and the next to write has room again."""
        alive_before, until = self.alive(), time.monotonic() + 2.0
        with suppress(OSError), (self.disk / "other").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        while len(self.alive()) == len(alive_before) and time.monotonic() < until:
            time.sleep(0.01)
        (self.disk / "other").unlink()
        self._note("full", full=True)

    def relent(self, *, now: bool = False) -> None:
        """Wakes who was paused for long enough, and mends what was cut or full."""
        at = float("inf") if now else time.monotonic()
        for name, until in [*self.paused.items()]:
            if at > until:
                with suppress(ProcessLookupError):  # It had just ended when it was paused.
                    self.ranks.signal(name, signal.SIGCONT)
                self.woken[name] = self.last()[0]
                del self.paused[name]
        if self.hosts is not None and self.link is not None and at > self.link[1]:
            self.hosts.cut(self.link[0], "up")
            self.link = None

    def _note(self, kind: str, **fields: object) -> None:
        self.counts[kind] += 1
        with (self.ranks.folder / "log-chaos.jsonl").open("a") as log:
            log.write(json.dumps({"t": time.time(), **fields}) + "\n")


class Disk:
    """A disk of 256 KiB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", self.path], check=True)
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.path], check=True)


FULL = "No space left", "file write failed", "unexpected pos"
"""Errors of a rank that could not write its checkpoint; torch's writer has words of its own."""


LATE = "ranks came in"
"""The error of a rank that came after a run's end which a stranger had deleted."""


def one(
    folder: Path, seed: int, limit: float, *, shards: int, hosts: bool, disk: bool
) -> tuple[str, str, Chaos]:
    """Runs one training with its chaos; gives "equal", "cut off" or what was wrong, and a line."""
    draw = random.Random(seed)
    options = options_of(seed, shards)
    alone = surviving.undisturbed(options)
    begun = time.monotonic()
    with ExitStack() as stack:
        links = stack.enter_context(Hosts(HOSTS + 1, "1gbit", name="ibs")) if hosts else None
        full = stack.enter_context(Disk(folder / "disk")) if disk else None
        if full is not None:
            options["disk"] = str(full)
        store = (f"{NETWORK}.{HOSTS + 1}", f"{links.name}-h{HOSTS + 1}") if links else None
        ranks = stack.enter_context(Ranks(folder, options, store))
        chaos = Chaos(ranks, draw, links, full)
        if "environment" in options and not hosts:
            address = f"127.0.0.1:{ranks.port}"
            for stranger in (
                Stranger(address, folder, Seal(b"a key of his own"), seed),
                Poisoner(address, draw.choice((b"", b"\xff" * 16))),
            ):
                stranger.start()
                stack.callback(stranger.end)
        for rank in range(options["ranks"]):
            chaos.start(f"r{rank}", seed=rank if shards == 1 else 0)
        while time.monotonic() - begun < limit:
            time.sleep(draw.uniform(0.1, 0.9))
            log = lines(folder)
            if any("ended" in line for line in log) or not chaos.alive():
                break
            if any("at" in line for line in log):
                chaos.weigh()
                chaos.event()
        chaos.relent(now=True)
        cut_off = chaos.finish()
        codes = {name: process.exitcode for name, process in ranks.processes.items()}
        hang = [name for name, code in codes.items() if code is None and not cut_off]
        wrong = [f"{name} hangs" for name in hang]
        for name in hang:
            ranks.signal(name, signal.SIGUSR2)  # Where it hangs is in its output.
        time.sleep(2 if wrong else 0)
        wrong += [
            f"{name} ended with {code}: {ranks.said(name)[-300:]}"
            for name, code in codes.items()
            if code not in (0, 4, -9, None)
            and not (code == 1 and any(why in ranks.said(name) for why in FULL))
            and not (code == 3 and "environment" in options and LATE in ranks.said(name))
        ]
    problems, apart = faults(folder, alone, cut_off=cut_off)
    if options.get("chunk") and apart:
        problems.append(f"the weights are {apart:.1e} apart, 0 with chunk=")
    if (folder / "CANARY").exists():
        problems.append("what a stranger wrote was executed")
    crews = max((line["crew"] for line in lines(folder) if "at" in line), default=-1) + 1
    seconds = time.monotonic() - begun
    weights = "" if cut_off else f"weights {apart:.1e} apart, "
    run = f"{seed}: {named(options) or 'plain'}: {_counted(chaos.counts)}"
    line = f"{run}, {crews} crews, {weights}{chaos.growth()}, {seconds:.0f} s"
    return "; ".join(wrong + problems) or ("cut off" if cut_off else "equal"), line, chaos


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind == "kills")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="the first run's seed")
    parser.add_argument("--limit", type=float, default=150, metavar="SECONDS", help="for one run")
    parser.add_argument("--steps", type=int, default=OPTIONS["steps"], help="of one run")
    parser.add_argument("--shards", type=int, default=1, help="the ranks of a replica (HSDP)")
    parser.add_argument("--hosts", action="store_true", help="cut links too; needs root")
    parser.add_argument("--disk", action="store_true", help="fill the checkpoints' disk too; needs root")
    args = parser.parse_args()
    OPTIONS["steps"] = args.steps
    counts, ended = dict.fromkeys(("kills", "joins", "pauses", "cuts", "full"), 0), Counter()
    waits: list[float] = []
    for seed in range(args.first, args.first + args.runs):
        folder = args.folder / f"run-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        verdict, line, chaos = one(
            folder, seed, args.limit, shards=args.shards, hosts=args.hosts, disk=args.disk
        )
        counts = {kind: count + chaos.counts[kind] for kind, count in counts.items()}
        ended[verdict if verdict in ("equal", "cut off") else "wrong"] += 1
        waits += gaps(folder)
        load = os.getloadavg()[0]
        print(f"{line}, load {load:.0f}; {verdict}", flush=True)
    waits.sort()
    middle = f"{waits[len(waits) // 2]:.2f} s, longest {waits[-1]:.1f} s" if waits else "-"
    verdicts = ", ".join(f"{ended[verdict]} {verdict}" for verdict in ("equal", "cut off", "wrong"))
    print(f"{verdicts}; {_counted(counts)}; next step after a kill: median {middle}")
    return 1 if ended["wrong"] else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
