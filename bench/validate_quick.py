"""What `isobatch validate --quick` takes on two CPU ranks, beside `python -c 'import torch'` run twice, one after the other, in turns:

python bench/validate_quick.py --turns 5
python bench/validate_quick.py --before ../before/python    # a worktree of another commit, with the extension as it is here
python bench/validate_quick.py --turns 0                     # the time line only: where the seconds of one command go
python bench/validate_quick.py --wait 60                     # before each, until other programs leave the processors alone
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

HERE = Path(__file__).parents[1] / "python"
IMPORTS = "import torch, twice"
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
from isobatch.validate import __main__ as arguments
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
    """Seconds of the command, of processor time in it, and of the ranks' own work, and of each phase; and how many processors
    other programs had meanwhile."""

    command: float
    processor: float
    others: float
    ranks: float = 0.0
    phases: dict[str, float] = {}


def environment(source: Path) -> dict[str, str]:
    """As where isobatch is installed: with its bytecode kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(source)}


def busy() -> float:
    """Seconds of processor time that this machine has given to programs, all processors together."""
    user, nice, system, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(rest[2:4])) / os.sysconf("SC_CLK_TCK")


def timed(commands: list[list[str]], source: Path, folder: Path) -> Turn:
    """Runs commands one after the other."""
    others, before, begun = busy(), resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment(source), capture_output=True, check=False
        )
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(took, processor, max(0.0, busy() - others - processor) / took)


def once(source: Path, folder: Path) -> Turn:
    """A quick verdict."""
    found = timed([["-m", "isobatch", *ARGUMENTS]], source, folder)
    report = json.loads((folder / "report.json").read_text())
    return found._replace(ranks=report["wall_seconds"], phases=report["phase_seconds"])


def imports(folder: Path) -> Turn:
    """Importing torch twice, one after the other."""
    return timed([["-c", "import torch"]] * 2, HERE, folder)


def wait(seconds: float) -> None:
    """Until other programs take less than a tenth of a processor, or this time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy()
        time.sleep(1)
        if busy() - before < 0.1:
            return


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


def turns(versions: dict[str, Path], folder: Path, count: int, patience: float) -> None:
    """Runs everything in turns, nobody always first, and prints what it took."""
    found: dict[str, list[Turn]] = {name: [] for name in (IMPORTS, *versions)}
    for turn in range(count):
        for name in [*found][:: 1 if turn % 2 else -1]:
            wait(patience)
            found[name].append(once(versions[name], folder) if name in versions else imports(folder))
    print(
        f"load {os.getloadavg()[0]:.1f}, {count} turns; seconds: median (least to most), and by the imports'"
    )
    base = [one.command for one in found[IMPORTS]]
    for name, samples in found.items():
        show(f"{name}: whole", [one.command for one in samples], statistics.median(base))
        show("  processor time", [one.processor for one in samples], statistics.median(base))
        if name in versions:
            show("  the ranks' own", [one.ranks for one in samples], statistics.median(base))
        others = [one.others for one in samples]
        print(f"  others had             {statistics.median(others):6.2f} processors (to {max(others):.2f})")
        phases = {
            phase: statistics.median([one.phases[phase] for one in samples]) for phase in samples[0].phases
        }
        print(" ", ", ".join(f"{phase} {took:.2f}" for phase, took in phases.items() if took >= 0.005))
    pairs = zip(found["now"], base, strict=True)
    print("by turn, now / imports:", ", ".join(f"{one.command / of:.2f}" for one, of in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, help="another version's python folder")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
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
            turns(versions, folder, args.turns, args.wait)
        for version, source in versions.items():
            print(f"\n{version}, one after the other:")
            for part, took, processor in timeline(source, folder):
                said = "" if processor is None else f"{processor:.2f} s"
                print(f"  {took:6.2f} s  {said:>7} of processor time  {part}")


if __name__ == "__main__":
    main()
