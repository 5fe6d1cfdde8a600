"""one_minus_sqrt: 1 − √u."""

from __future__ import annotations

from isobatch.schedules.form import Power
from isobatch.schedules.kind import UNTIL, falling, kind
from isobatch.schedules.schedule import Schedule


@kind(lambda run: run.fall(Power(stretch=0.5)), tail=Power(stretch=0.5), until=UNTIL)
def one_minus_sqrt(lr: float, steps: float, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − √(x/steps)), then end: the cooldown of Hägele et al. 2024 (arXiv:2405.18392).

    >>> import isobatch as ib
    >>> ib.schedules.one_minus_sqrt(1.0, 100).at(25)
    0.5
    """
    return falling(lr, steps, end, Power(stretch=0.5))
