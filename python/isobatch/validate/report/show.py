"""A report for people."""

from __future__ import annotations

import io
import sys
from typing import IO

from isobatch.validate.report.report import Report, Verdict

STYLES = {
    Verdict.PASS: "green",
    Verdict.CAUTION: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.UNCHECKED: "dim",
}


def table_text(report: Report) -> str:
    """What `show` prints, without colours."""
    text = io.StringIO()
    show(report, text)
    return text.getvalue()


def show(report: Report, file: IO[str] | None = None) -> None:
    """Prints a report as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file or sys.stdout)
    title = f"isobatch validate: {report.verdict}"
    if report.rehearsal is not None:
        title += f" (rehearsal {report.rehearsal})"
    table = Table(title=Text(title, style=STYLES[report.verdict]), title_justify="left", show_edge=False)
    table.add_column("proof", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for proof in report.proofs:
        text = proof.text if proof.cause is None else f"{proof.text}\n→ {proof.cause}"
        table.add_row(proof.name, Text(proof.verdict, style=STYLES[proof.verdict]), Text(text))
    console.print(table)
    if report.machine is not None:
        machine = report.machine
        devices = ", ".join(dict.fromkeys(rank.device for rank in machine.ranks))
        console.print(
            f"{len(machine.ranks)} {'rank' if len(machine.ranks) == 1 else 'ranks'} on {machine.nodes} "
            f"{'node' if machine.nodes == 1 else 'nodes'}, {machine.backend}, {devices}; "
            f"torch {machine.versions['torch']}; {report.wall_seconds:.1f} s",
            highlight=False,
        )
