"""A report that is not finished yet. Without torch: the process that starts the ranks makes one, too."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from isobatch._core import __version__
from isobatch.planning.plan import Plan
from isobatch.validate.options import Options
from isobatch.validate.report.document import Report, digest
from isobatch.validate.report.verdict import Proof, Verdict


class Draft:
    """A report in the making: whole enough at any time to be written when a rank is lost."""

    def __init__(self, plan: Plan, options: Options) -> None:
        self._begun = time.monotonic()
        self.phase_seconds: dict[str, float] = {}
        self._report = Report(
            isobatch_version=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_seconds=0.0,
            verdict=Verdict.UNCHECKED,
            rehearsal=None,
            plan=plan,
            plan_digest=digest(plan),
            options=options,
            proofs=[],
        )

    def add(self, *found: Proof, **parts: Any) -> None:
        """More proofs, and parts of the report by name."""
        proofs = [*self._report.proofs, *found]
        self._report = msgspec.structs.replace(self._report, proofs=proofs, **parts)

    def report(self) -> Report:
        """The report so far."""
        return msgspec.structs.replace(
            self._report,
            verdict=Verdict.of([proof.verdict for proof in self._report.proofs]),
            wall_seconds=round(time.monotonic() - self._begun, 3),
            phase_seconds=dict(self.phase_seconds),
        )
