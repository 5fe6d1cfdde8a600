"""`isobatch plan`: one recipe on one cluster."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from isobatch.cli.options.cluster import add_cluster, cluster, one_node
from isobatch.cli.options.settings import add_settings, settings
from isobatch.cli.options.source import add_from, add_to, fields, job, recipe, say_weighted, show, target
from isobatch.cli.options.values import path
from isobatch.cli.terminal.colour import show_plan
from isobatch.cli.terminal.messages import say, write_json
from isobatch.errors import InputError, missing

if TYPE_CHECKING:
    from isobatch.recipes.cluster import Cluster
    from isobatch.recipes.recipe import Recipe


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "plan",
        help="plan one recipe on one cluster",
        description="Plans one recipe on one cluster: how to train there, or why it cannot and what would work.",
    )
    command.add_argument(
        "recipe",
        nargs="?",
        help="a .toml, .yaml or .json file with Recipe's fields; or -: JSON requests on stdin, one a line, each answered",
    )
    add_from(command)
    add_to(command)
    add_cluster(command)
    add_settings(command)
    command.add_argument(
        "--memory-of",
        metavar="MODULE:FACTORY",
        help="cap the micro-batch by what fits --memory-gib, worked out with fake tensors from your own model and optimizer: "
        "a function that returns an isobatch.validate.Workload",
    )
    command.add_argument("--json", action="store_true", help="print the plan as JSON")
    command.add_argument(
        "-o", "--output", type=path, metavar="FILE", help="also save the plan, as JSON; -: to stdout"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the plan; 1 where it is infeasible."""
    from isobatch.planning.plan import plan

    if args.recipe == "-":
        from isobatch.cli.serving.lines import serve

        for option in ("source", "to", "memory_of", "output"):
            if getattr(args, option) is not None:
                raise InputError(
                    "- reads requests from stdin, one a line, and answers each: it goes without files of others"
                )
        return serve(fields(args), cluster(args, optional=True), settings(args))
    tool = target(args)
    tuned, where, how = recipe(args), cluster(args), settings(args)
    if args.memory_of is not None:
        how["max_micro_batch"] = _fitting(args.memory_of, tuned, where, how)
    made = plan(tuned, where, **how)
    if args.output and args.output != "-":
        made.save(args.output)
    if args.json or args.output == "-":
        write_json(made.to_json())
    else:
        text = made.explain()
        show_plan(text, made.status)
    if made.step_seconds is not None and args.gpus and (note := one_node(args.gpus, args)):
        say(note)
    if tool is not None and made.status != "infeasible":
        show(made.to(tool, job=job(args)))
    if made.status == "infeasible":
        say_weighted(tool, made)
        return 1
    return 0


def _fitting(factory: str, tuned: Recipe, where: Cluster, how: dict[str, Any]) -> int:
    """The largest micro-batch that fits, worked out; what it was worked out from goes to stderr."""
    from isobatch.validate.memory import memory_of

    if "max_micro_batch" in how:
        raise InputError("--memory-of and --max-micro-batch are both caps: give one of the two")
    if where.memory_gib is None:
        raise missing("--memory-gib", "the memory of one GPU, for --memory-of")
    found = memory_of(
        factory,
        memory_gib=where.memory_gib,
        precision=tuned.precision or "fp32",
        clip_norm=tuned.clip_norm,
    )
    print(found.explain(), file=sys.stderr)
    if not found.micro_batch:
        raise InputError(f"not even one sample fits {where.memory_gib:g} GiB", field="--memory-of")
    return found.micro_batch
