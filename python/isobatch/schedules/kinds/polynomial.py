"""polynomial: a power of what is left."""

from __future__ import annotations

from isobatch.schedules.arguments import factor
from isobatch.schedules.form import Power, Segment
from isobatch.schedules.kind import NUMBER, UNTIL, Argument, Run, falling, kind
from isobatch.schedules.schedule import Schedule


def _build(run: Run) -> list[Segment]:
    return run.fall(Power(exponent=run.number("power", 1.0)))


@kind(_build, power=Argument(NUMBER), until=UNTIL)
def polynomial(lr: float, steps: float, power: float = 1.0, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − x/steps)^power, then end.

    >>> import isobatch as ib
    >>> ib.schedules.polynomial(1.0, 4, power=2).at(2)
    0.25
    """
    return falling(lr, steps, end, Power(exponent=factor("power", power)))
