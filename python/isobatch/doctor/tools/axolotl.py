"""axolotl."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding
from isobatch.doctor.tools import transformers
from isobatch.tools.reading.common import share


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    yield from transformers.check(case)
    if case.at("warmup_steps") is None and case.at("warmup_ratio") is None:
        yield Finding(
            f"the warmup is {share(0.03)} of the steps, at most 100",
            "neither warmup_steps nor warmup_ratio is given",
            "axolotl, core/builders/base.py",
            "warmup_steps: 0  (for none)",
        )
