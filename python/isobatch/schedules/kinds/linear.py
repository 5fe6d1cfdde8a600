"""linear: a straight line."""

from __future__ import annotations

from isobatch.schedules.form import Power
from isobatch.schedules.kind import UNTIL, falling, kind
from isobatch.schedules.schedule import Schedule


@kind(lambda run: run.fall(Power()), tail=Power(), until=UNTIL)
def linear(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − x/steps), then end.

    >>> import isobatch as ib
    >>> ib.schedules.linear(1.0, 4).values(range(6)).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return falling(lr, steps, end, Power())
