"""`isobatch fleet`: every job on every cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isobatch.cli._settings import add_settings, settings

BLOCK = 1 << 20
"""Rows that are planned, and written, at a time."""

SHOWN = 40
"""Rows that a terminal gets to see."""


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser("fleet", help="plan every job on every cluster", description=__doc__)
    command.add_argument(
        "jobs", help="CSV, Parquet or JSON lines with Recipe's fields; a file, a folder or a glob"
    )
    command.add_argument("clusters", help="the same with Cluster's fields")
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
    command.add_argument("-o", "--output", metavar="FILE", help=".parquet, .csv or .jsonl; else to stdout")
    command.add_argument("--json", action="store_true", help="to stdout as JSON lines")
    command.add_argument("--strict", action="store_true", help="exit 1 where a row is infeasible")


def run(args: argparse.Namespace) -> int:
    """Plans block by block; the summary goes to stderr."""
    from isobatch._fleet import prepare

    columns = [name.strip() for name in args.columns.split(",")] if args.columns else None
    fleet = prepare(
        args.jobs,
        args.clusters,
        pairs=args.pairs,
        columns=columns,
        select=args.select,
        top=args.top,
        **settings(args),
    )
    counts = Counts()
    with _sink(args, fleet) as write, _progress(fleet.rows) as advance:
        for block in fleet.blocks(BLOCK):
            table, status, reasons = block.plan_with_status()
            write(table)
            counts.add(status, reasons)
            advance(block.rows)
    counts.show(fleet)
    return 1 if args.strict and counts.infeasible else 0


@contextmanager
def _sink(args: argparse.Namespace, fleet: Any) -> Iterator[Callable[[Any], None]]:
    if args.output:
        from pathlib import Path

        import msgspec

        from isobatch._core import __version__
        from isobatch.tables import table_writer

        made_by = {
            "isobatch.version": __version__,
            "isobatch.settings": msgspec.json.encode(fleet.settings).decode(),
        }
        with table_writer(Path(args.output), made_by) as write:
            yield write
    elif args.json:
        yield _write_json
    elif sys.stdout.isatty():
        yield _Screen()
    else:
        yield _CsvLines()


def _write_json(table: Any) -> None:
    from isobatch.tables import json_lines

    sys.stdout.buffer.write(json_lines(table))


class _CsvLines:
    """CSV on stdout, its header once."""

    def __init__(self) -> None:
        self.header = True

    def __call__(self, table: Any) -> None:
        import pyarrow.csv

        from isobatch.tables import joined

        pyarrow.csv.write_csv(
            joined(table), sys.stdout.buffer, pyarrow.csv.WriteOptions(include_header=self.header)
        )
        self.header = False


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
def _progress(rows: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty() or rows <= BLOCK:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=rows)
        yield lambda done: bar.advance(task, done)


class Counts:
    """Rows by status and by reason."""

    def __init__(self) -> None:
        self.rows = self.feasible = 0
        self.by_reason: dict[Any, int] = {}
        self.example: dict[Any, int] = {}

    @property
    def infeasible(self) -> int:
        return self.rows - self.feasible

    def add(self, status: Any, reasons: Any) -> None:
        """Counts a block: its status codes and reason bits."""
        import numpy as np

        from isobatch.reason import Reason

        for reason in Reason:
            hit = (reasons >> np.uint64(reason.bit) & np.uint64(1)).astype(bool)
            if count := int(np.count_nonzero(hit)):
                self.example.setdefault(reason, self.rows + int(np.argmax(hit)))
                self.by_reason[reason] = self.by_reason.get(reason, 0) + count
        self.rows += len(status)
        self.feasible += int(np.count_nonzero(status != 2))

    def show(self, fleet: Any) -> None:
        """The summary, on stderr."""
        print(f"{self.rows} rows: {self.feasible} feasible, {self.infeasible} infeasible", file=sys.stderr)
        for reason, count in sorted(self.by_reason.items(), key=lambda item: -item[1]):
            first = self.example[reason]
            fault = fleet.fault(first) if reason.startswith("invalid_") else None
            detail = f"; first in {fleet.where(first)}: {fault[0]}, legal: {fault[1]}" if fault else ""
            print(
                f"  {reason.severity:10} {count:>9}  {reason.value}: {reason.text}{detail}", file=sys.stderr
            )
