"""`isobatch plan --sweep-gpus`: one recipe over many GPU counts."""

from __future__ import annotations

import argparse
import json
from typing import Any

from isobatch import words
from isobatch.cli.options.cluster import kind
from isobatch.cli.options.settings import settings
from isobatch.cli.terminal.messages import say, write_json
from isobatch.cli.terminal.tables import show_table
from isobatch.errors import InputError, missing

_SHOWN = (
    "gpus",
    "micro_batch",
    "accumulation",
    "effective_batch",
    "efficiency",
    "hours",
    "gpu_hours",
    "cost",
)


def show_sweep(args: argparse.Namespace, recipe: Any) -> int:
    """Prints the counts at which there is a plan, and where it stops paying; 1 where there is none."""
    from isobatch.fleet.sweep import sweep
    from isobatch.recipes.cluster import Cluster

    asked = settings(args)
    profiles = asked.pop("profile", [])
    if len(profiles) != 1:
        raise missing("--profile", "--sweep-gpus needs one (see isobatch calibrate)")
    if args.gpus is not None or args.nodes is not None:
        raise InputError("--sweep-gpus goes with --gpus-per-node, not with --gpus or --nodes")
    per_node = 8 if args.gpus_per_node is None else args.gpus_per_node
    counts = args.sweep_gpus
    node = Cluster(gpus_per_node=per_node, **kind(args))
    found = sweep(recipe, counts, profile=profiles[0], cluster=node, **asked)
    rows = [dict(zip(found.columns, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    feasible = [row for row in rows if row["status"] != "infeasible"]
    if args.json:
        for row in rows:
            write_json(json.dumps(_plain(row)))
    else:
        show_table(_SHOWN, [[_cell(row[name]) for name in _SHOWN] for row in feasible])
    if unfilled := len(counts) - len(rows):
        say(f"left out {words.counted(unfilled, 'GPU count')} that fill no whole nodes of {per_node} GPUs")
    _summary(found, len(feasible), len(rows))
    return 0 if feasible else 1


def _summary(found: Any, feasible: int, rows: int) -> None:
    say(f"{feasible:,} of {words.counted(rows, 'GPU count')} have a plan")
    for what in ("fastest", "cheapest", "knee"):
        if (count := getattr(found, what)) is not None:
            say(f"{what}: {count:,} GPUs")
    if found.critical_batch is not None:
        say(f"critical batch: {words.figure(found.critical_batch)} samples, {found.definition}")


def _cell(value: Any) -> str:
    return "" if value != value else words.count(value) if value == int(value) else words.figure(value)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it, its unknown values null."""
    from isobatch.reason import reasons_of

    values = {name: value.item() for name, value in row.items()}
    reasons = [reason.value for reason in reasons_of(values.pop("reasons"))]
    return {
        name: None if value in (-1, "") or value != value else value for name, value in values.items()
    } | {"reasons": reasons}
