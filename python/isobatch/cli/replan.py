"""`isobatch replan`: move a run that is under way to other hardware or another batch."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.cli.options.cluster import add_cluster, cluster
from isobatch.cli.options.settings import add_settings, settings
from isobatch.cli.options.values import count, path
from isobatch.cli.terminal.messages import write_json


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "replan",
        help="move a running job to other hardware or another batch",
        description="Moves a running job to other hardware or another batch, and says where its data go on.",
    )
    command.add_argument("plan", help="the plan the run follows: a .json file from `plan -o` or `replan -o`")
    command.add_argument(
        "--at-step", type=int, required=True, metavar="N", help="optimizer steps done so far"
    )
    command.add_argument("--effective-batch", type=count, metavar="N", help="effective batch to move to")
    add_cluster(command)
    add_settings(command)
    command.add_argument("--json", action="store_true", help="print the plan as JSON")
    command.add_argument("-o", "--output", type=path, metavar="FILE", help="also save the plan, as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the moved plan; 1 where it is infeasible."""
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
    if args.json:
        write_json(moved.to_json())
    else:
        print(moved.explain())
    return 1 if moved.status == "infeasible" else 0
