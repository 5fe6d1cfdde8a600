"""`isobatch plan`: one recipe on one cluster."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.cli.options.cluster import add_cluster, cluster
from isobatch.cli.options.settings import add_settings, settings
from isobatch.cli.options.source import add_from, add_to, job, recipe, show
from isobatch.cli.options.values import path
from isobatch.cli.terminal.messages import write_json


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "plan",
        help="plan one recipe on one cluster",
        description="Plans one recipe on one cluster: how to train there, or why it cannot and what would work.",
    )
    command.add_argument("recipe", nargs="?", help="a .toml, .yaml or .json file with Recipe's fields")
    add_from(command)
    add_to(command)
    add_cluster(command)
    add_settings(command)
    command.add_argument("--json", action="store_true", help="print the plan as JSON")
    command.add_argument("-o", "--output", type=path, metavar="FILE", help="also save the plan, as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the plan; 1 where it is infeasible."""
    from isobatch.planning.plan import plan

    made = plan(recipe(args), cluster(args), **settings(args))
    if args.output:
        made.save(args.output)
    if args.json:
        write_json(made.to_json())
    else:
        print(made.explain())
    if args.to is not None and made.status != "infeasible":
        show(made.to(args.to, job=job(args)))
    return 1 if made.status == "infeasible" else 0
