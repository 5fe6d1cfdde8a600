"""cosine: half a cosine."""

from __future__ import annotations

from isobatch.schedules.form import Cosine
from isobatch.schedules.kind import UNTIL, falling, kind
from isobatch.schedules.schedule import Schedule


@kind(lambda run: run.fall(Cosine()), tail=Cosine(), until=UNTIL)
def cosine(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 + cos(π·x/steps))/2, then end (Loshchilov, Hutter 2017, arXiv:1608.03983).

    >>> import isobatch as ib
    >>> ib.schedules.cosine(1.0, 100).at(50)
    0.5
    """
    return falling(lr, steps, end, Cosine())
