"""The rows of nodes, batch and micro-batch that AWS wrote for HyperPod by hand: which add up, and which are
those of `isobatch counts`.

    HYPERPOD=CHECKOUT python bench/counts.py > bench/results/counts.md

HYPERPOD is a checkout of aws/sagemaker-hyperpod-recipes. A row counts as ours on an instance type where
`isobatch.counts` gives the same batch, groups and learning rate, and the same micro-batch under the row's
own as the limit of memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools.hyperpod import ScaleRow, instances, rows
from isobatch.tools.read import read_file


def ours(recipe: ib.Recipe, row: ScaleRow, each: int, limit: int) -> bool:
    """Returns whether counts gives this row on nodes with `each` GPUs."""
    gpus = row.nodes * each
    counts = ib.counts(
        recipe, [gpus], cluster=ib.Cluster(gpus_per_node=each), split="ragged", max_micro_batch=limit
    )
    if not counts.working:
        return False
    plan, groups = counts.plan_at(gpus), counts.groups[0]
    if plan.effective_batch != row.batch or plan.lr != row.lr:
        return False
    if row.groups is None:
        return len(groups) == 1 and plan.micro_batch == row.micro_batch
    number, small, large = row.groups
    return plan.accumulation == 1 and groups == ((gpus - number, large), (number, small))


def main() -> None:
    """Prints the table, and the rows that do not add up."""
    checkout = Path(os.environ["HYPERPOD"])
    tally, wrong = Counter(), defaultdict(list)
    files = [
        path
        for path in sorted((checkout / "hyperpod_recipes").rglob("*.yaml"))
        if "\nscale_config:" in path.read_text()
    ]
    for path in files:
        reading = read_file(path)
        recipe = ib.Recipe.read(path, duration="1000st")
        table, where = rows(reading.settings), instances(reading.settings)
        common = max(row.groups[2] if row.groups else row.micro_batch for row in table)
        for finding in examine(path).findings:
            wrong[finding.what].append(path.stem.removeprefix("llmft_"))
        for row in table:
            kind = "uneven" if row.groups else "even"
            tally[kind, "rows"] += 1
            own = row.groups[2] if row.groups else row.micro_batch
            missed = [each for each in where if not ours(recipe, row, each, own)]
            tally[kind, "on every type"] += not missed
            tally[kind, "on some"] += bool(missed) and len(missed) < len(where)
            tally[kind, "on none"] += len(missed) == len(where)
            tally[kind, "one limit"] += any(ours(recipe, row, each, common) for each in where)
    commit = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    print("# AWS's rows for HyperPod beside `isobatch counts`\n")
    exact, every = (
        sum(tally[kind, name] for kind in ("even", "uneven")) for name in ("on every type", "rows")
    )
    print(
        f"> {exact} of {every} rows are ours exactly on each instance type of their recipe. The other "
        f"{every - exact} are ours on types of 8 GPUs, and do not add up on those of 4."
    )
    print(
        "\nMade by `HYPERPOD=CHECKOUT python bench/counts.py`; aws/sagemaker-hyperpod-recipes at "
        f"{commit.stdout.strip()}, "
        f"{len(files)} recipes with a `scale_config`, Python {sys.version.split()[0]}.\n"
    )
    columns = ("rows", "on every type", "on some", "on none", "one limit")
    print(
        "| rows | in all | ours on every instance type of their recipe | on some | on none | on some type, "
        "under one limit of memory a recipe |"
    )
    print("|---|---|---|---|---|---|")
    for kind in ("even", "uneven"):
        print(f"| {kind} | {' | '.join(str(tally[kind, column]) for column in columns)} |")
    print(
        f"\n## The {sum(map(len, wrong.values()))} rows that do not add up\n\n| finding | rows | recipes "
        "(llmft_…) |\n|---|---|---|"
    )
    for finding_text, names in wrong.items():
        print(f"| {finding_text} | {len(names)} | {', '.join(names)} |")


if __name__ == "__main__":
    main()
