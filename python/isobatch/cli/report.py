"""`isobatch report`: plans, a sweep or a validation as a page that people read."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from isobatch.cli.options.standard import stdin_as_file
from isobatch.cli.options.values import path
from isobatch.cli.terminal.messages import say
from isobatch.errors import InputError, missing


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "report",
        help="write plans, a sweep or a validation as a page, or as a picture",
        description="Writes one HTML page that needs no network: the figures, the charts, the reasons and what would fix most rows, "
        "and all rows to sort and to search; or only its charts, as SVG or PNG.",
    )
    command.add_argument(
        "source",
        metavar="FILE",
        type=path,
        help="what `isobatch fleet -o` wrote (.parquet, .csv, .jsonl or a folder), a plan.json, a validation's report.json, or the "
        "lines of `isobatch sweep --json` (.jsonl); -: stdin",
    )
    command.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="FILE",
        help="the page (.html), or its charts (.svg, .png); -: the page to stdout",
    )
    command.add_argument("--title", metavar="TEXT", help="the page's heading (default: by the file)")
    command.add_argument(
        "--deadline-hours",
        type=float,
        metavar="HOURS",
        help="hours that a run may take (default: as the plans say)",
    )
    command.add_argument("--currency", default="$", metavar="SIGN", help="of the prices (default: $)")
    again = command.add_argument_group("what would fix most rows of a fleet, by planning it again")
    again.add_argument("--jobs", type=path, metavar="FILE", help="the jobs that were planned")
    again.add_argument("--clusters", type=path, metavar="FILE", help="the clusters that they were planned on")
    again.add_argument(
        "--profile",
        action="append",
        metavar="FILE",
        help="the profile that they were planned with; repeat it for several GPU types",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the page."""
    from isobatch.files.whole import check_place, write_whole
    from isobatch.report.write import content, needed, page_of_file

    if args.output is None:
        raise missing("-o", "name the page, such as report.html, or - for stdout")
    for option in ("clusters", "profile"):
        if getattr(args, option) is not None and args.jobs is None:
            raise InputError(f"--{option} needs --jobs, which are planned again")
    if args.deadline_hours is not None and not args.deadline_hours > 0:
        raise InputError(f"--deadline-hours must be above 0, got {args.deadline_hours:g}")
    needed()
    if args.output != "-":
        check_place(args.output)
    with stdin_as_file(args, "source", "jobs", "clusters"):
        page = page_of_file(
            args.source,
            title=args.title,
            deadline=args.deadline_hours,
            currency=args.currency,
            jobs=args.jobs,
            clusters=args.clusters,
            profile=_profiles(args.profile),
        )
    made = content(page, args.output)
    if args.output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(made)
    else:
        write_whole(args.output, made)
        say(f"{args.output}: {len(made) / 1e6:.2f} MB")
    return 0


def _profiles(paths: list[str] | None) -> Any:
    if not paths:
        return None
    from isobatch.forecast.profile import Profile

    return [Profile.load(each) for each in paths]
