"""`isobatch report`: plans or a validation as a page, or a table of plans as files of other tools."""

import argparse
import sys
from pathlib import Path
from typing import Any

from isobatch.cli.options import path
from isobatch.cli.source import TO, is_plan, job
from isobatch.cli.terminal import say, stdin_as_file
from isobatch.errors import InputError, missing
from isobatch.words import counted

DESCRIPTION = (
    "Writes one HTML page that needs no network: the figures, the charts, the reasons, and the first rows to "
    "sort and to search; or only its charts, as SVG or PNG."
)
EXAMPLES = (
    "isobatch report plans.parquet -o report.html",
    "isobatch report plan.json -o plan.png",
    "isobatch report plans.parquet --to slurm -o jobs/ --clusters clusters.csv",
)


OPTIONS = {
    "source": (
        "what `isobatch fleet -o` wrote (.parquet, .csv, .jsonl or a folder), a plan.json, a validation's "
        "report.json, the .json of `isobatch same -o`, or a log of divisions (.jsonl); -: stdin",
        {"metavar": "FILE", "type": path},
    ),
    "-o/--output FILE": "the page (.html), or its charts (.svg, .png); -: the page to stdout; with --to a "
    "folder",
    "--title TEXT": "the page's heading (default: the answer that it has)",
    "--deadline-hours HOURS": "hours that a run may take (default: as the plans say)",
    "--currency SIGN": ("of the prices (default: $)", "$"),
    "another tool": {
        **TO,
        "--to TOOL": "write the plans of a table as this tool's files instead, a folder for each job",
    },
    "--force": "with --to: replace files that are there",
    "--gpus-per-node N": "with --to: of a table's clusters, which have no nodes (default 8)",
    "--jobs FILE": "with --to: the jobs that were planned",
    "--clusters FILE": "with --to: the clusters that they were planned on",
}

_MAX_NOTES = 10
"""Notes of a folder of files that are printed, those of the most files first."""


def run(args: argparse.Namespace) -> int:
    """Writes the page, or the files of --to."""
    if args.to is not None:
        return _write_files(args)
    from isobatch.files.whole import check_place, write_whole
    from isobatch.report.pages import content, page_of_file, require_extra

    if args.output is None:
        raise missing("-o", "name the page, such as report.html, or - for stdout")
    for name in ("jobs", "clusters"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} needs --to: a page is made of the plans alone")
    if args.deadline_hours is not None and not args.deadline_hours > 0:
        raise InputError(f"--deadline-hours must be above 0, got {args.deadline_hours:g}")
    require_extra(args.output)
    if args.output != "-":
        check_place(args.output)
    with stdin_as_file(args, "source"):
        shown = {"title": args.title, "deadline": args.deadline_hours, "currency": args.currency}
        page = page_of_file(args.source, **shown)
    data = content(page, args.output)
    if args.output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        write_whole(args.output, data)
        say(f"{args.output}: {len(data) / 1e6:.2f} MB")
    return 0


def _write_files(args: argparse.Namespace) -> int:
    """Writes the plans of a table as another tool's files."""
    from isobatch.files.read import read_table
    from isobatch.tools.folder import export_rows

    if is_plan(args.source):
        todo = f"isobatch plan {args.source} --to {args.to} writes it"
        raise InputError(f"is one plan: {todo}", file=args.source)
    if args.output is None:
        raise missing("-o", "name the folder for the jobs, such as -o jobs/")

    def by(name: str, path: str | None) -> dict[str, Any]:
        return {} if path is None else {str(row.get(name)): row for row in read_table(path).to_pylist()}

    written = export_rows(
        read_table(args.source).to_pylist(),
        args.to,
        Path(args.output),
        job=job(args),
        jobs=by("job", args.jobs),
        clusters=by("cluster", args.clusters),
        gpus_per_node=args.gpus_per_node,
        force=args.force,
        source=args.source,
    )
    say(*(f"{args.to}: {note}" for note in written.notes[:_MAX_NOTES]))
    if len(written.notes) > _MAX_NOTES:
        say(f"{args.to}: {counted(len(written.notes) - _MAX_NOTES, 'further note')} in the files")
    say("; ".join((f"{counted(written.jobs, 'job')} written to {args.output}", *written.skipped)))
    return 0
