"""What is in the plans of many rows."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from isobatch.fleet.results import STATUS
from isobatch.fleet.rows import Fleet
from isobatch.reason import Reason
from isobatch.words import counted

_INFEASIBLE = STATUS.tolist().index("infeasible")
_BITS = [(reason, reason.bit) for reason in Reason]


class Summary(msgspec.Struct):
    """Rows by status and by reason; for each reason that says a value is wrong or missing, the first such row in
    words."""

    rows: int = 0
    feasible: int = 0
    reasons: dict[str, int] = {}
    examples: dict[str, str] = {}

    @property
    def infeasible(self) -> int:
        """Rows that cannot be planned."""
        return self.rows - self.feasible

    def add(self, block: Fleet, status: Any, reasons: Any) -> None:
        """Counts a block: its status codes and reason bits."""
        present = int(np.bitwise_or.reduce(reasons, initial=0))
        for reason, bit in _BITS:
            if not present >> bit & 1:
                continue
            hit = (reasons >> np.uint64(bit) & np.uint64(1)).astype(bool)
            self.reasons[reason.value] = self.reasons.get(reason.value, 0) + int(np.count_nonzero(hit))
            if reason.value not in self.examples and (example := _example(reason, block, hit)):
                self.examples[reason.value] = example
        self.rows += len(status)
        self.feasible += int(np.count_nonzero(status != _INFEASIBLE))

    def merge(self, other: Summary) -> None:
        """Adds what another has counted."""
        self.rows += other.rows
        self.feasible += other.feasible
        for name, count in other.reasons.items():
            self.reasons[name] = self.reasons.get(name, 0) + count
        self.examples = {**other.examples, **self.examples}

    def lines(self) -> list[str]:
        """The summary as people read it."""
        lines = [f"{counted(self.rows, 'row')}: {self.feasible:,} feasible, {self.infeasible:,} infeasible"]
        for name, count in sorted(self.reasons.items(), key=lambda item: -item[1]):
            reason = Reason(name)
            detail = f"; first in {self.examples[name]}" if name in self.examples else ""
            lines.append(f"  {reason.severity:10} {count:>9,}  {name}: {reason.text}{detail}")
        return lines


def _example(reason: Reason, block: Fleet, hit: Any) -> str | None:
    """The first row that has a reason, where there is something to correct in it."""
    if reason.startswith("invalid_"):
        return block.fault(int(np.argmax(hit)), reason)
    return block.where(int(np.argmax(hit))) if reason.startswith("needs_") else None
