"""constant: the learning rate does not change."""

from __future__ import annotations

from isobatch.schedules.arguments import rate
from isobatch.schedules.form import Segment
from isobatch.schedules.kind import Run, kind
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import level


def _build(run: Run) -> list[Segment]:
    return [level(run.warmup, run.peak)]


@kind(_build)
def constant(lr: float) -> Schedule:
    """lr at every step.

    >>> import isobatch as ib
    >>> ib.schedules.constant(0.1).at(1000)
    0.1
    """
    return lone(level(0.0, rate("lr", lr)))
