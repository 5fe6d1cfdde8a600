"""torchtitan."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding
from isobatch.doctor.general import stops


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    yield from stops(case, "torchtitan, train.py (0.2), trainer.py (0.3)")
    yield Finding(
        "the warmup is one step ahead",
        "torchtitan computes (step + 1) / warmup_steps, so that no step is at 0",
        "torchtitan, components/lr_scheduler.py: linear_warmup_stable_decay",
        "leave it, or take it into account where runs of other tools are compared",
    )
