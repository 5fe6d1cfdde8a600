"""`isobatch plan --sweep-gpus`: one recipe over many GPU counts."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from isobatch.cli._cluster import kind
from isobatch.cli._settings import settings
from isobatch.cli._show import show_table
from isobatch.cli.elastic import gpu_counts
from isobatch.errors import InputError

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
        raise InputError("--sweep-gpus needs one profile", field="--profile")
    if args.gpus is not None or args.nodes is not None:
        raise InputError("goes with --gpus-per-node, not with --gpus or --nodes", field="--sweep-gpus")
    per_node = 8 if args.gpus_per_node is None else args.gpus_per_node
    counts = gpu_counts(args.sweep_gpus, "--sweep-gpus")
    node = Cluster(gpus_per_node=per_node, **kind(args))
    found = sweep(recipe, counts, profile=profiles[0], cluster=node, **asked)
    rows = [dict(zip(found.columns, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    feasible = [row for row in rows if row["status"] != "infeasible"]
    if args.json:
        for row in rows:
            print(json.dumps(_plain(row)))
    else:
        show_table(_SHOWN, [[_cell(row[name]) for name in _SHOWN] for row in feasible])
    if unfilled := len(counts) - len(rows):
        print(f"{unfilled} counts are left out: they do not fill nodes of {per_node} GPUs", file=sys.stderr)
    _summary(found, len(feasible), len(rows))
    return 0 if feasible else 1


def _summary(found: Any, feasible: int, rows: int) -> None:
    print(f"{feasible} of {rows} counts have a plan", file=sys.stderr)
    for what in ("fastest", "cheapest", "knee"):
        if (count := getattr(found, what)) is not None:
            print(f"{what}: {count} GPUs", file=sys.stderr)
    if found.critical_batch is not None:
        print(f"critical batch: {found.critical_batch:.6g} samples, {found.definition}", file=sys.stderr)


def _cell(value: Any) -> str:
    return "" if value != value else f"{value:.6g}"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it, its unknown values null."""
    from isobatch.reason import reasons_of

    values = {name: value.item() for name, value in row.items()}
    reasons = [reason.value for reason in reasons_of(values.pop("reasons"))]
    return {
        name: None if value in (-1, "") or value != value else value for name, value in values.items()
    } | {"reasons": reasons}
