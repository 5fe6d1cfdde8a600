"""Kills, pauses and joins ranks of a surviving run at random, and compares it with the run that nobody disturbed.

    python bench/survive_chaos.py --runs 40 --folder /tmp/chaos

A run starts on 4 ranks. Every half second or so one to three ranks are killed (SIGKILL) or one is paused past its lease and woken
(SIGSTOP, SIGCONT), at any moment, forming and healing included, and others are started. One rank that holds the state is always left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ddp import surviving
from ddp.crews import Ranks, faults, gaps, lines

OPTIONS = {
    "ranks": 4,
    "min_ranks": 1,
    "lease": 3.0,
    "timeout": 60.0,
    "steps": 300,
    "pause": 0.02,
    "check": True,
}


class Chaos:
    """What is done to one run."""

    def __init__(self, ranks: Ranks, draw: random.Random) -> None:
        self.ranks, self.draw = ranks, draw
        self.paused: dict[str, float] = {}
        self.dead: set[str] = set()
        self.kills = self.pauses = self.joins = 0

    def alive(self) -> list[str]:
        return [
            name
            for name, process in self.ranks.processes.items()
            if process.exitcode is None and name not in self.dead
        ]

    def members(self) -> list[str]:
        """Who was seen in the last crew, and is there."""
        log = [line for line in lines(self.ranks.folder) if "at" in line]
        last = max((line["crew"] for line in log), default=-1)
        names = {line["rank_of"].split("-")[1] for line in log if line["crew"] == last}
        return [name for name in self.alive() if name in names and name not in self.paused]

    def event(self) -> None:
        """Does one thing."""
        for name, until in [*self.paused.items()]:
            if time.monotonic() > until:
                self.ranks.signal(name, signal.SIGCONT)
                del self.paused[name]
        members = self.members()
        what = self.draw.random()
        if what < 0.5 and len(members) > 1:
            for name in self.draw.sample(members, min(self.draw.choice((1, 1, 2, 3)), len(members) - 1)):
                self.ranks.processes[name].kill()
                self._note(kill=name)
                self.dead.add(name)
                self.kills += 1
                time.sleep(self.draw.choice((0.0, 0.0, 0.05, 0.2)))
        elif what < 0.6 and len(members) > 1 and not self.paused:
            name = self.draw.choice(members)
            self.ranks.signal(name, signal.SIGSTOP)
            self.paused[name] = time.monotonic() + self.draw.choice((1.0, 5.0, 8.0))
            self.pauses += 1
        if len(self.alive()) < self.draw.choice((2, 3, 4, 5)):
            self.joins += 1
            self.ranks.start(f"j{self.joins}")

    def _note(self, **what: str) -> None:
        with (self.ranks.folder / "log-chaos.jsonl").open("a") as log:
            log.write(json.dumps({"t": time.time(), **what}) + "\n")


def one(folder: Path, seed: int, limit: float, alone: tuple[dict, dict]) -> tuple[list[str], str, Chaos]:
    """Runs one training with its chaos; gives what was wrong, and a line."""
    draw = random.Random(seed)
    options = {**OPTIONS, "inside": seed % 2 == 1, "workers": int(seed % 5 == 4)}
    begun = time.monotonic()
    with Ranks(folder, options) as ranks:
        for rank in range(OPTIONS["ranks"]):
            ranks.start(f"r{rank}", seed=rank)
        chaos = Chaos(ranks, draw)
        while time.monotonic() - begun < limit:
            time.sleep(draw.uniform(0.1, 0.9))
            if any("ended" in line for line in lines(folder)) or not chaos.alive():
                break
            if any("at" in line for line in lines(folder)):
                chaos.event()
        for name in chaos.paused:
            ranks.signal(name, signal.SIGCONT)
        codes = ranks.wait(60)
        wrong = [f"{name} hangs" for name, code in codes.items() if code is None]
        for name in (name for name, code in codes.items() if code is None):
            ranks.signal(name, signal.SIGUSR2)  # Where it hangs is in its output.
        time.sleep(2 if wrong else 0)
        wrong += [
            f"{name} ended with {code}: {ranks.said(name)[-300:]}"
            for name, code in codes.items()
            if code not in (0, 4, -9, None)
        ]
    found, apart = faults(folder, alone)
    crews = max((line["crew"] for line in lines(folder) if "at" in line), default=-1) + 1
    line = f"{seed}: {chaos.kills} kills, {chaos.pauses} pauses, {chaos.joins} joins, {crews} crews, weights {apart:.1e} apart, {time.monotonic() - begun:.0f} s"
    return wrong + found, line, chaos


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="the first run's seed")
    parser.add_argument("--limit", type=float, default=150, metavar="SECONDS", help="for one run")
    args = parser.parse_args()
    alone = surviving.undisturbed(OPTIONS)
    kills = pauses = joins = bad = 0
    waits: list[float] = []
    for seed in range(args.first, args.first + args.runs):
        folder = args.folder / f"run-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        wrong, line, chaos = one(folder, seed, args.limit, alone)
        kills, pauses, joins, bad = (
            kills + chaos.kills,
            pauses + chaos.pauses,
            joins + chaos.joins,
            bad + bool(wrong),
        )
        waits += gaps(folder)
        print(f"{line}; {'; '.join(wrong) or 'equal'}", flush=True)
    waits.sort()
    middle = f"{waits[len(waits) // 2]:.2f} s, longest {waits[-1]:.1f} s" if waits else "-"
    print(
        f"{args.runs - bad} of {args.runs} equal; {kills} kills, {pauses} pauses, {joins} joins; next step after a kill: median {middle}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
