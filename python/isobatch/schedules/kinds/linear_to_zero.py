"""linear_to_zero: a straight line to 0."""

from __future__ import annotations

from isobatch.schedules.form import Power
from isobatch.schedules.kind import UNTIL, kind
from isobatch.schedules.kinds.linear import linear
from isobatch.schedules.schedule import Schedule


@kind(lambda run: run.fall(Power(), b=0.0), until=UNTIL)
def linear_to_zero(lr: float, steps: float) -> Schedule:
    """lr·(1 − x/steps), then 0: decay to zero (Bergsma et al. 2025, arXiv:2502.15938).

    >>> import isobatch as ib
    >>> ib.schedules.linear_to_zero(1.0, 4).at(3)
    0.25
    """
    return linear(lr, steps)
