"""What `isobatch validate --quick` takes on two CPU ranks, as it is and as it was, in turns:

git worktree add ../before COMMIT   # and the extension, as it is here
python bench/validate_quick.py ../before/python --turns 5
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

import isobatch as ib

HERE = Path(__file__).parents[1] / "python"


def once(source: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds of the command, of processor time in it, and of the ranks' own work."""
    env = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "isobatch", "validate", "plan.json", "--nproc-per-node", "2", "--quick"]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "-o", "report.json"], cwd=folder, env=env, capture_output=True, check=False)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, processor, json.loads((folder / "report.json").read_text())["wall_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path, help="the other version's python folder")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    versions = {"before": args.before.resolve(), "now": HERE}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in versions}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = ib.Recipe(
            effective_batch=64, lr=0.1, optimizer="sgd", dataset_size=1003, duration="10ep", micro_batch=8
        )
        ib.plan(recipe, 2).save(folder / "plan.json")
        for turn in range(args.turns):
            for name in [*versions][:: 1 if turn % 2 else -1]:  # nobody is always first
                found[name].append(once(versions[name], folder))
    print(f"load {os.getloadavg()[0]:.0f}, {args.turns} turns; seconds, median (least)")
    for name, samples in found.items():
        columns = zip(("command", "processor time", "ranks"), zip(*samples, strict=True), strict=True)
        print(
            name, *(f"{what} {statistics.median(column):.1f} ({min(column):.1f})" for what, column in columns)
        )


if __name__ == "__main__":
    main()
