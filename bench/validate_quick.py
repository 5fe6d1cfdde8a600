"""What `isobatch validate --quick` takes on two CPU ranks, beside `python -c 'import torch'` run twice, one after the other, in turns:

python bench/validate_quick.py --turns 5
python bench/validate_quick.py --before ../before/python    # a worktree of another commit, with the extension as it is here
python bench/validate_quick.py --turns 0                     # the time line only: where the seconds of one command go
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
from typing import Any, NamedTuple

import isobatch as ib

HERE = Path(__file__).parents[1] / "python"
ARGUMENTS = ["validate", "plan.json", "--nproc-per-node", "2", "--quick", "-o", "report.json"]

MARKS = """
import os, sys, time

def mark(name):
    with open("marks.txt", "a") as file:
        file.write(f"{os.getpid()} {time.monotonic()} {time.process_time()} {name}\\n")

def around(home, name, before, after, only=lambda: True):
    work = getattr(home, name)
    def marked(*args, **kwargs):
        if only(): mark(before)
        try:
            return work(*args, **kwargs)
        finally:
            if only(): mark(after)
    setattr(home, name, marked)

def first():
    return os.environ.get("RANK", "0") == "0"

mark("Python and the command line's own imports")
from isobatch.validate import launching
around(launching, "_preload", "up to the imports", "imports that ranks share")
around(launching, "_launch", "the launcher made ready", "ranks ended")
work = launching.work
def marked_work(*args):
    from isobatch.validate import worker
    from isobatch.validate.ranks import group
    around(worker, "load", "devices asked", "workload made", first)
    around(worker, "Group", "a draft", "ranks met", first)
    around(worker, "_prove", "up to the phases", "phases", first)
    around(group.Group, "close", "the report shared", "ranks left each other", first)
    if first(): mark("a rank started")
    return work(*args)
launching.work = marked_work
from isobatch.cli import main
from isobatch.validate import arguments
around(arguments, "publish", "the report read", "the report shown")
try:
    from isobatch.cli.terminal.leaving import leave
except ImportError:  # a version before it
    leave = sys.exit
code = main(sys.argv[1:])
mark("up to the end of main")
leave(code)
"""


class Turn(NamedTuple):
    """Seconds of the command, of processor time in it, and of the ranks' own work; and of each phase."""

    command: float
    processor: float
    ranks: float
    phases: dict[str, float]


def environment(source: Path) -> dict[str, str]:
    """As where isobatch is installed: with its bytecode kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(source)}


def once(source: Path, folder: Path) -> Turn:
    """A quick verdict."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "isobatch", *ARGUMENTS]
    subprocess.run(command, cwd=folder, env=environment(source), capture_output=True, check=False)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = json.loads((folder / "report.json").read_text())
    return Turn(took, processor, report["wall_seconds"], report["phase_seconds"])


def imports(folder: Path) -> float:
    """Seconds of importing torch twice, one after the other."""
    begun = time.perf_counter()
    for _ in range(2):
        subprocess.run([sys.executable, "-c", "import torch"], cwd=folder, env=environment(HERE), check=True)
    return time.perf_counter() - begun


def timeline(source: Path, folder: Path) -> list[tuple[str, float, float | None]]:
    """What one command does in turn, the seconds of each part, and those of processor time where one process did it."""
    marks = folder / "marks.txt"
    marks.unlink(missing_ok=True)
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", MARKS, *ARGUMENTS],
        cwd=folder,
        env=environment(source),
        capture_output=True,
        check=False,
    )
    found, processes = list[tuple[str, float, float | None]](), dict[str, float]()
    for line in marks.read_text().splitlines():
        process, at, processor, name = line.split(" ", 3)
        # A process that was not seen before is the parent, or a fork whose count begins at 0.
        found.append((name, float(at) - begun, float(processor) - processes.get(process, 0.0)))
        begun, processes[process] = float(at), float(processor)
    return [*found, ("Python's end", time.monotonic() - begun, None)]


def show(name: str, values: list[float], of: float) -> None:
    """A row: the median, the least and the most, and how many times the median of the imports it is."""
    print(
        f"{name:24} {statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f})",
        f"{statistics.median(values) / of:.2f} x",
    )


def turns(versions: dict[str, Path], folder: Path, count: int) -> None:
    """Runs everything in turns, nobody always first, and prints what it took."""
    found: dict[str, list[Any]] = {name: [] for name in ("import torch, twice", *versions)}
    for turn in range(count):
        for name in [*found][:: 1 if turn % 2 else -1]:
            found[name].append(once(versions[name], folder) if name in versions else imports(folder))
    print(
        f"load {os.getloadavg()[0]:.1f}, {count} turns; seconds: median (least to most), and by the imports'"
    )
    base = found.pop("import torch, twice")
    show("import torch, twice", base, statistics.median(base))
    for name, samples in found.items():
        for part in ("command", "processor", "ranks"):
            show(f"{name}: {part}", [getattr(one, part) for one in samples], statistics.median(base))
        phases = {
            phase: statistics.median([one.phases[phase] for one in samples]) for phase in samples[0].phases
        }
        print(" ", ", ".join(f"{phase} {took:.2f}" for phase, took in phases.items() if took >= 0.005))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, help="another version's python folder")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    versions = {} if args.before is None else {"before": args.before.resolve()}
    versions["now"] = HERE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = ib.Recipe(
            effective_batch=64, lr=0.1, optimizer="sgd", dataset_size=1003, duration="10ep", micro_batch=8
        )
        ib.plan(recipe, 2).save(folder / "plan.json")
        for source in versions.values():  # reads everything once, and leaves the bytecode
            timeline(source, folder)
        if args.turns:
            turns(versions, folder, args.turns)
        for version, source in versions.items():
            print(f"\n{version}, one after the other:")
            for part, took, processor in timeline(source, folder):
                said = "" if processor is None else f"{processor:.2f} s"
                print(f"  {took:6.2f} s  {said:>7} of processor time  {part}")


if __name__ == "__main__":
    main()
