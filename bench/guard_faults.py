"""Runs the guard in each script of tests/guard/scripts as it is, then with each fault; counts what is right.

python bench/guard_faults.py bench/results/guard.md

It takes 17 minutes on two cores that others use, and shows each row as it comes.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ["OMP_NUM_THREADS"] = "1"

from ddp.pool import Pool
from guard.faults import FAULTS
from guard.healthy import SCRIPTS
from guard.runs import plan_of, run

LIBRARIES = ("torch", "transformers", "accelerate", "lightning", "timm", "torchvision")
KINDS = {healthy.script: healthy.kind.partition(",")[0] for healthy in SCRIPTS}

HEAD = """# The guard's verdicts on whole scripts, healthy and faulty

> The guard lets {healthy} healthy scripts through, and names {faults} injected faults.

Written by `python bench/guard_faults.py bench/results/guard.md` on {date}, load {load}: two gloo processes
on a CPU with tiny models, {versions}. The scripts are in `tests/guard/scripts`, the faults in
`tests/guard/injected.py`; `pytest tests/guard -m "slow or not slow"` asserts both. What the guard costs is in
[validate.md](validate.md).
"""


class Ranks:
    """Two ranks, and two others where a script left them in the middle of something."""

    def __init__(self) -> None:
        self.pool = Pool(2)

    def __call__(
        self, script: str, fields: dict[str, Any], options: dict[str, Any], fault: str | None
    ) -> Any:
        """The outcome of each rank, or a text if a rank broke."""
        try:
            return self.pool(run, script, plan_of(script, **fields).to_json(), options, fault)
        except (AssertionError, EOFError) as error:  # a rank failed, or died
            for process in self.pool.processes:
                process.kill()
            self.pool = Pool(2)
            return (str(error).strip() or "a rank died").splitlines()[-1]


def words(settings: dict[str, Any]) -> str:
    """Options in words."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as it is"


Row = tuple[bool, str]
"""Whether it is as expected, and its line of the table."""


def healthy_row(ranks: Ranks, healthy: Any) -> Row:
    """A script as it is."""
    reports = ranks(healthy.script, healthy.fields, healthy.options, None)
    if isinstance(reports, str):
        broken, notes = reports, []
    else:
        broken = next((str(report.error) for report in reports if report.error), "")
        notes = [*reports[0].notes, *(f"unchecked: {text}" for text in reports[0].unchecked)]
    outcome = broken or "; ".join(notes) or "—"
    settings = words(healthy.options | healthy.fields)
    verdict = "stopped" if broken else "goes through"
    return not broken, f"| {healthy.kind} | {settings} | {verdict} | {outcome} |"


def fault_row(ranks: Ranks, fault: Any) -> Row:
    """A script with a fault."""
    reports = ranks(fault.script, fault.fields, fault.options, fault.name)
    errors = [] if isinstance(reports, str) else [report.error for report in reports]
    named = fault.named_by(errors)
    first = next((error for error in errors if error is not None), None)
    outcome = (
        f"{first.step} | {first.diagnosis}"
        if first is not None
        else f"— | {reports if isinstance(reports, str) else 'went through'}"
    )
    return named, f"| {fault.name} | {KINDS[fault.script]} | {outcome} | {'yes' if named else '**no**'} |"


def rows(ranks: Ranks, table: list[Any], row: Callable[[Ranks, Any], Row]) -> list[Row]:
    """All rows of a table, shown as they come."""
    rows_so_far = []
    for number, case in enumerate(table, 1):
        rows_so_far.append(row(ranks, case))
        print(f"{number} of {len(table)}: {rows_so_far[-1][1]}", file=sys.stderr)
    return rows_so_far


def share(rows: list[Row]) -> str:
    """How many rows are as expected, of how many."""
    return f"{sum(good for good, _ in rows)} of {len(rows)}"


def main() -> None:
    """Totals and the rows that are not as expected, into the file that is given."""
    ranks, loads = Ranks(), [os.getloadavg()[0]]
    healthy = rows(ranks, SCRIPTS, healthy_row)
    faults = rows(ranks, FAULTS, fault_row)
    ranks.pool.close()
    loads.append(os.getloadavg()[0])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    lines = [
        HEAD.format(
            date=datetime.date.today().isoformat(),
            load=" to ".join(f"{load:.0f}" for load in loads),
            versions=versions,
            healthy=share(healthy),
            faults=share(faults),
        ),
        *(row for good, row in (*healthy, *faults) if not good),
    ]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
