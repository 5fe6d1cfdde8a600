"""The verdicts, for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

from isobatch.validate.report.verdict import Proof, Verdict

STYLES = {
    Verdict.PASS: "green",
    Verdict.CAUTION: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.UNCHECKED: "dim",
}


def table(title: str, verdict: Verdict, proofs: Sequence[Proof], footer: str, file: IO[str] | None) -> None:
    """Prints proofs, one a row, under a title in the verdict's colour. The text may hold anything: none of it is markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file or sys.stdout)
    rows = Table(title=Text(title, style=STYLES[verdict]), title_justify="left", show_edge=False)
    rows.add_column("proof", no_wrap=True)
    rows.add_column("verdict", no_wrap=True)
    rows.add_column("what was found", overflow="fold")
    for proof in proofs:
        text = proof.text
        if proof.diagnosis is not None:
            text += f"\n→ {proof.diagnosis.text}: {proof.diagnosis.advice}"
        rows.add_row(proof.name, Text(proof.verdict, style=STYLES[proof.verdict]), Text(text))
    console.print(rows)
    if footer:
        console.print(Text(footer))
