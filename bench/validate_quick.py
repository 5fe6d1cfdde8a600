"""The time of `isobatch validate --quick` on two CPU ranks, beside `python -c 'import torch'` run twice.

One after the other, in turns:

python bench/validate_quick.py --turns 5
python bench/validate_quick.py --wait 60    # before each, until other programs leave the processors alone
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import isobatch as ib

IMPORTS = "import torch, twice"
ARGUMENTS = ["validate", "plan.json", "--nproc-per-node", "2", "--quick", "-o", "report.json"]


class Turn(NamedTuple):
    """Seconds of the command, of processor time in it, and of the ranks' own work, and of each phase.

    And how many processors
    other programs had meanwhile."""

    command: float
    processor: float
    neighbours: float
    ranks: float = 0.0
    phases: dict[str, float] = {}


def busy() -> float:
    """Seconds of processor time that this machine has given to programs, all processors together."""
    user, nice, system, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(rest[2:4])) / os.sysconf("SC_CLK_TCK")


def timed(commands: list[list[str]], folder: Path) -> Turn:
    """Runs commands one after the other."""
    busy_before, before, begun = busy(), resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # As where isobatch is installed: with its bytecode kept.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for command in commands:
        subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, check=False
        )
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(took, processor, max(0.0, busy() - busy_before - processor) / took)


def once(folder: Path) -> Turn:
    """A quick verdict."""
    turns = timed([["-m", "isobatch", *ARGUMENTS]], folder)
    report = json.loads((folder / "report.json").read_text())
    return turns._replace(ranks=report["wall_seconds"], phases=report["phase_seconds"])


def imports(folder: Path) -> Turn:
    """Importing torch twice, one after the other."""
    return timed([["-c", "import torch"]] * 2, folder)


def wait(seconds: float) -> None:
    """Until other programs take less than a tenth of a processor, or this time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy()
        time.sleep(1)
        if busy() - before < 0.1:
            return


def show(name: str, values: list[float], of: float) -> None:
    """A row: the median, the least and the most, and how many times the median of the imports it is."""
    print(
        f"{name:24} {statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f})",
        f"{statistics.median(values) / of:.2f} x",
    )


def turns(folder: Path, count: int, patience: float) -> None:
    """Runs everything in turns, nobody always first, and prints what it took."""
    commands = {IMPORTS: imports, "now": once}
    samples_of: dict[str, list[Turn]] = {name: [] for name in commands}
    for turn in range(count):
        for name in [*samples_of][:: 1 if turn % 2 else -1]:
            wait(patience)
            samples_of[name].append(commands[name](folder))
    print(
        f"load {os.getloadavg()[0]:.1f}, {count} turns; seconds: median (least to most), and by the imports'"
    )
    base = [turn.command for turn in samples_of[IMPORTS]]
    for name, samples in samples_of.items():
        show(f"{name}: whole", [turn.command for turn in samples], statistics.median(base))
        show("  processor time", [turn.processor for turn in samples], statistics.median(base))
        if name != IMPORTS:
            show("  the ranks' own", [turn.ranks for turn in samples], statistics.median(base))
        neighbours = [turn.neighbours for turn in samples]
        print(
            f"  others had             {statistics.median(neighbours):6.2f} processors "
            f"(to {max(neighbours):.2f})"
        )
        phases = {
            phase: statistics.median([turn.phases[phase] for turn in samples]) for phase in samples[0].phases
        }
        print(" ", ", ".join(f"{phase} {took:.2f}" for phase, took in phases.items() if took >= 0.005))
    pairs = zip(samples_of["now"], base, strict=True)
    print("by turn, now / imports:", ", ".join(f"{turn.command / of:.2f}" for turn, of in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = ib.Recipe(
            effective_batch=64, lr=0.1, optimizer="sgd", dataset_size=1003, duration="10ep", micro_batch=8
        )
        ib.plan(recipe, 2).save(folder / "plan.json")
        once(folder)  # reads everything once, and leaves the bytecode
        turns(folder, args.turns, args.wait)


if __name__ == "__main__":
    main()
