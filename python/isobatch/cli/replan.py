"""`isobatch replan`: move a run that is under way to other hardware or another batch."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.cli._cluster import add_cluster, cluster
from isobatch.cli._settings import add_settings, settings


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "replan",
        help="move a run that is under way to other hardware or another batch",
        description="Moves a run that is under way to other hardware or another batch.",
    )
    command.add_argument(
        "plan", help="the plan that the run follows: a .json file of `plan -o` or of an earlier move"
    )
    command.add_argument("--at-step", type=int, required=True, metavar="N", help="optimizer steps done")
    command.add_argument("--effective-batch", type=int, metavar="N", help="the batch to reach")
    add_cluster(command)
    add_settings(command)
    command.add_argument("--json", action="store_true", help="print the plan as JSON")
    command.add_argument("-o", "--output", metavar="FILE", help="also save the plan, as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the moved plan; 1 where there is none."""
    from isobatch.planning.plan import Plan
    from isobatch.planning.replan import replan

    moved = replan(
        Plan.load(args.plan),
        at_step=args.at_step,
        cluster=cluster(args, optional=True),
        effective_batch=args.effective_batch,
        **settings(args),
    )
    if args.output:
        moved.save(args.output)
    print(moved.to_json() if args.json else moved.explain())
    return 1 if moved.status == "infeasible" else 0
