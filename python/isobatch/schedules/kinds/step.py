"""step: a drop every so often."""

from __future__ import annotations

from isobatch.schedules.arguments import factor, length, rate
from isobatch.schedules.form import Exponential, Segment
from isobatch.schedules.kind import LENGTH, NUMBER, Argument, Run, kind
from isobatch.schedules.schedule import Schedule, lone


def _build(run: Run) -> list[Segment]:
    shape = Exponential(rate=run.number("gamma", 0.1), stairs=True)
    # Stairs are counted from the start of the run, the warmup included, as published recipes count them.
    stairs = Segment(start=run.warmup, length=run.steps("every", 1), a=run.peak, shape=shape, beyond=True)
    return run.floored(stairs)


@kind(_build, every=Argument(LENGTH, required=True), gamma=Argument(NUMBER))
def step(lr: float, every: float, gamma: float = 0.1) -> Schedule:
    """lr·gamma^⌊x/every⌋.

    >>> import isobatch as ib
    >>> ib.schedules.step(1.0, 30, gamma=0.5).values([29, 30, 60]).tolist()
    [1.0, 0.5, 0.25]
    """
    shape = Exponential(rate=factor("gamma", gamma), stairs=True)
    return lone(Segment(length=length("every", every), a=rate("lr", lr), shape=shape, beyond=True))
