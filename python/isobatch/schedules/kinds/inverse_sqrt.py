"""inverse_sqrt: falls as 1/√x."""

from __future__ import annotations

from isobatch.schedules.arguments import length, rate
from isobatch.schedules.form import Reciprocal, Segment
from isobatch.schedules.kind import LENGTH, Argument, Run, kind
from isobatch.schedules.schedule import Schedule, lone


def build_inverse_sqrt(run: Run) -> list[Segment]:
    """From the peak where the warmup ends, with its length as the timescale."""
    timescale = run.steps("timescale", run.warmup or 10_000)
    return run.floored(run.tail(Reciprocal(), timescale, 0.0, beyond=True))


@kind(build_inverse_sqrt, timescale=Argument(LENGTH))
def inverse_sqrt(lr: float, timescale: float) -> Schedule:
    """lr/√(1 + x/timescale), without an end. After a warmup of `timescale` steps this is lr·√(W/step).

    >>> import isobatch as ib
    >>> ib.schedules.inverse_sqrt(1.0, 100).at(300)
    0.5
    """
    over = length("timescale", timescale)
    return lone(Segment(length=over, a=rate("lr", lr), shape=Reciprocal(), beyond=True))
