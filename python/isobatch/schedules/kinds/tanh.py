"""tanh: a hyperbolic tangent."""

from __future__ import annotations

from isobatch.schedules.arguments import number
from isobatch.schedules.form import Segment, Tanh
from isobatch.schedules.kind import SIGNED, UNTIL, Argument, Run, falling, kind
from isobatch.schedules.schedule import Schedule


def _build(run: Run) -> list[Segment]:
    return run.fall(Tanh(lower=run.number("lower", -6.0), upper=run.number("upper", 3.0)))


@kind(_build, lower=Argument(SIGNED), upper=Argument(SIGNED), until=UNTIL)
def tanh(lr: float, steps: float, lower: float = -6.0, upper: float = 3.0, end: float = 0.0) -> Schedule:
    """end + (lr − end)·(1 − tanh(lower·(1 − u) + upper·u))/2 with u = x/steps (Hsueh et al. 2019, arXiv:1806.01593).

    It starts a little below lr and stays a little above end, by what tanh leaves at the bounds.

    >>> import isobatch as ib
    >>> ib.schedules.tanh(1.0, 100, lower=-1, upper=1).at(50)
    0.5
    """
    return falling(lr, steps, end, Tanh(lower=number("lower", lower), upper=number("upper", upper)))
