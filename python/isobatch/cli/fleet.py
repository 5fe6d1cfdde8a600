"""`isobatch fleet`: every job on every cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isobatch.cli._settings import add_settings, settings

SHOWN = 40
"""Rows that a terminal gets to see."""


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "fleet",
        help="plan every job on every cluster",
        description="Plans every job on every cluster. A row that has no plan says why; the others go on.",
    )
    command.add_argument(
        "jobs",
        help="CSV, Parquet or JSON lines with Recipe's fields; a file, a folder, a glob or a URL (s3://…)",
    )
    command.add_argument(
        "clusters",
        nargs="?",
        help="the same with Cluster's fields; without it each row of the jobs has its own cluster's",
    )
    command.add_argument("--pairs", metavar="FILE", help="a table of job and cluster: only these meet")
    command.add_argument("--columns", metavar="A,B,…", help="only these columns of the result")
    add_settings(command)
    command.add_argument(
        "--select",
        default="all",
        metavar="WHICH",
        help="of each job all (default), fastest, cheapest or goodput",
    )
    command.add_argument("--top", type=int, default=1, metavar="N", help="so many of each job")
    command.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="a .parquet, .csv, .tsv or .jsonl file; or a folder: a Parquet file for each of the jobs' files; else to stdout",
    )
    command.add_argument("--json", action="store_true", help="to stdout as JSON lines")
    command.add_argument("--strict", action="store_true", help="exit 1 where a row is infeasible")
    folder = command.add_argument_group("into a folder")
    folder.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on from what the same command has done before (default)",
    )
    folder.add_argument("--partition-by", metavar="COLUMN", help="lay the files out in folders COLUMN=value")
    folder.add_argument(
        "--engine", default="local", metavar="ENGINE", help="local (default), or ray: on a Ray cluster"
    )
    folder.add_argument(
        "--address", help="of the Ray cluster: auto, or host:port; without it one is started on this machine"
    )


def run(args: argparse.Namespace) -> int:
    """Plans block by block; the summary goes to stderr."""
    from isobatch.fleet.query import query

    columns = [name.strip() for name in args.columns.split(",")] if args.columns else None
    asked = query(args.clusters, columns=columns, select=args.select, top=args.top, **settings(args))
    failed: dict[str, str] = {}
    if args.output and _is_folder(args.output):
        manifest = _into_folder(args, asked)
        summary, failed = manifest.summary, manifest.failed
    else:
        summary = _into_one(args, asked)
    for line in summary.lines():
        print(line, file=sys.stderr)
    for why in failed.values():
        print(f"isobatch fleet: {why}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} files are not planned; run it again when they are mended", file=sys.stderr)
        return 2
    return 1 if args.strict and summary.infeasible else 0


def _is_folder(output: str) -> bool:
    from pathlib import PurePosixPath

    from pyarrow.fs import FileType

    from isobatch.files.read import location

    fs, path = location(output)
    return (
        path.endswith("/")
        or not PurePosixPath(path).suffix
        or fs.get_file_info(path).type == FileType.Directory
    )


def _into_folder(args: argparse.Namespace, asked: Any) -> Any:
    from isobatch.errors import InputError
    from isobatch.fleet.folder import run

    if args.pairs:
        raise InputError("takes a file, not a folder, as the output", field="--pairs")
    if args.address:
        if args.engine != "ray":
            raise InputError("is for --engine ray", field="--address")
        from isobatch.fleet.folder.ray import connect

        connect(args.address)
    with _progress("parts") as advance:
        return run.run(
            asked,
            args.jobs,
            args.output,
            engine=args.engine,
            resume=args.resume,
            partition_by=args.partition_by,
            progress=advance,
        )


def _into_one(args: argparse.Namespace, asked: Any) -> Any:
    """Into one file, or to stdout."""
    from isobatch.errors import InputError
    from isobatch.files.read import find, location, read_table, refuse_output
    from isobatch.fleet.folder.blocks import BLOCK, planned, stream
    from isobatch.fleet.folder.summary import Summary

    for name, given in (
        ("--partition-by", args.partition_by is not None),
        ("--engine", args.engine != "local"),
        ("--address", args.address is not None),
        ("--no-resume", not args.resume),
    ):
        if given:
            raise InputError("needs a folder as the output: -o FOLDER", field=name)
    jobs = find(args.jobs)
    if args.output:
        others = (find(path) for path in (args.clusters, args.pairs) if path is not None)
        for files in (jobs, *others):
            refuse_output(files, *location(args.output))
    if args.pairs:
        fleets = asked.fleet(read_table(args.jobs), pairs=args.pairs, file=args.jobs).blocks(BLOCK)
    else:
        fleets = stream(asked, jobs)
    summary = Summary()
    with _sink(args, asked) as write, _progress("rows") as advance:
        for fleet, table, status, reasons in planned(fleets):
            write(table)
            summary.add(fleet, status, reasons)
            advance(summary.rows, None)
    return summary


@contextmanager
def _sink(args: argparse.Namespace, asked: Any) -> Iterator[Callable[[Any], None]]:
    from isobatch.errors import InputError
    from isobatch.files.write import CsvLines, JsonLines, table_writer

    if args.output:
        with table_writer(args.output, asked.metadata) as write:
            yield write
        return
    import pyarrow as pa

    try:
        if args.json:
            yield JsonLines(sys.stdout.buffer)
        elif sys.stdout.isatty():
            yield _Screen()
        else:
            yield CsvLines(sys.stdout.buffer)
    except pa.ArrowException as error:
        raise InputError(f"cannot be written: {error}", file="stdout") from None


class _Screen:
    """The first rows as a table."""

    COLUMNS = (
        "job",
        "cluster",
        "status",
        "micro_batch",
        "accumulation",
        "effective_batch",
        "lr",
        "total_steps",
        "reasons",
    )

    def __init__(self) -> None:
        self.left = SHOWN

    def __call__(self, table: Any) -> None:
        from isobatch.cli._show import show_table

        if self.left == 0:
            return
        names = [name for name in self.COLUMNS if name in table.column_names] or table.column_names
        rows = table.slice(0, self.left).select(names).to_pylist()
        show_table(names, [[_cell(row[name]) for name in names] for row in rows])
        self.left = 0
        if table.num_rows > SHOWN:
            print(f"the first {SHOWN} rows and some columns: -o FILE writes them all", file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Hears how much is done, of how much where that is known."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
