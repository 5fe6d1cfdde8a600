"""`isobatch export`: plans as the files of other tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from isobatch.cli.options.ours import refuse_recipe
from isobatch.cli.options.source import add_to, job
from isobatch.cli.options.values import count, path
from isobatch.cli.terminal.messages import say
from isobatch.errors import InputError, missing


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "export",
        help="write plans as other tools' files",
        description="Writes a plan as another tool's file, or a table of plans as a folder for each job.",
    )
    command.add_argument(
        "plan", help="what `isobatch plan -o` saved, or a table of `isobatch fleet` (CSV, Parquet, Arrow)"
    )
    add_to(command)
    command.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="FILE|FOLDER",
        help="write there; without it the file alone goes to stdout",
    )
    command.add_argument("--force", action="store_true", help="replace files that are there")
    command.add_argument(
        "--jobs", metavar="FILE", help="the jobs that a table was made of, for their schedule and precision"
    )
    command.add_argument(
        "--clusters", metavar="FILE", help="the clusters that a table was made of, for their nodes"
    )
    command.add_argument(
        "--gpus-per-node",
        type=count,
        metavar="N",
        help="of a table's clusters, which have no nodes (default 8)",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the files."""
    if args.to is None:
        raise missing("--to", "name the tool, such as --to slurm")
    refuse_recipe(args.plan)
    if Path(args.plan).suffix.lower() != ".json":
        return _many(args)
    from isobatch.planning.plan import Plan
    from isobatch.tools.export import form_of

    plan = Plan.load(args.plan).require()
    made = plan.to(args.to, form=form_of(args.to, args.output), job=job(args))
    for note in made.notes:
        say(f"{made.tool}: {note}")
    if args.output is None:
        print(made, end="")
        return 0
    if Path(args.output).exists() and not args.force:
        raise InputError("is there already: --force replaces it", file=args.output)
    made.save(args.output)
    return 0


def _many(args: argparse.Namespace) -> int:
    from isobatch.files.read import read_table
    from isobatch.tools.folder import export_rows

    if args.output is None:
        raise missing("-o", "name the folder for the jobs, such as -o jobs/")

    def by(name: str, path: str | None) -> dict[str, Any]:
        return {} if path is None else {str(row.get(name)): row for row in read_table(path).to_pylist()}

    written = export_rows(
        read_table(args.plan).to_pylist(),
        args.to,
        Path(args.output),
        job=job(args),
        jobs=by("job", args.jobs),
        clusters=by("cluster", args.clusters),
        gpus_per_node=args.gpus_per_node,
        force=args.force,
        source=args.plan,
    )
    say("; ".join((f"{written.jobs:,} jobs written to {args.output}", *written.skipped)))
    return 0
