"""rex: late to fall, then fast."""

from __future__ import annotations

from isobatch.schedules.form import Rex
from isobatch.schedules.kind import UNTIL, falling, kind
from isobatch.schedules.schedule import Schedule


@kind(lambda run: run.fall(Rex()), tail=Rex(), until=UNTIL)
def rex(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − u)/(1 − u/2) with u = x/steps, then end (Chen et al. 2021, arXiv:2107.04197).

    >>> import isobatch as ib
    >>> ib.schedules.rex(3.0, 100).at(50)
    2.0
    """
    return falling(lr, steps, end, Rex())
