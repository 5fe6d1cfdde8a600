"""exponential: multiplied by a constant every so often."""

from __future__ import annotations

from isobatch.errors import missing
from isobatch.schedules.arguments import factor, length, rate
from isobatch.schedules.form import Exponential, Segment
from isobatch.schedules.kind import LENGTH, NUMBER, UNTIL, Argument, Run, kind
from isobatch.schedules.schedule import Schedule, lone


def _build(run: Run) -> list[Segment]:
    if "gamma" in run.spec.arguments:
        shape = Exponential(rate=run.number("gamma", 1.0))
        return run.floored(run.tail(shape, run.steps("every", 1), 0.0, beyond=True))
    if not 0 < run.min_lr < run.peak:
        raise missing("gamma", "give exponential its gamma, or the recipe a min_lr above 0 to end at")
    return run.fall(Exponential(rate=run.min_lr / run.peak), b=0.0)


@kind(_build, gamma=Argument(NUMBER), every=Argument(LENGTH), until=UNTIL)
def exponential(lr: float, gamma: float, every: float = 1.0) -> Schedule:
    """lr·gamma^(x/every), without an end.

    >>> import isobatch as ib
    >>> ib.schedules.exponential(1.0, 0.25, every=10).at(5)
    0.5
    """
    shape = Exponential(rate=factor("gamma", gamma))
    return lone(Segment(length=length("every", every), a=rate("lr", lr), shape=shape, beyond=True))
