"""vaswani: the Transformer's own."""

from __future__ import annotations

import math

from isobatch.errors import missing
from isobatch.schedules.arguments import length, number
from isobatch.schedules.form import Power, Reciprocal, Segment
from isobatch.schedules.kind import Run, kind
from isobatch.schedules.kinds.inverse_sqrt import build_inverse_sqrt
from isobatch.schedules.schedule import Schedule, lone


def _build(run: Run) -> list[Segment]:
    if run.warmup == 0:
        raise missing("warmup", "vaswani is defined by its warmup, so the recipe must have one")
    return build_inverse_sqrt(run)


@kind(_build)
def vaswani(model_dim: int, warmup_steps: float, factor: float = 1.0) -> Schedule:
    """factor·d^−½·min(n^−½, n·W^−3/2) with n = x + 1, the paper's step number (Vaswani et al. 2017, arXiv:1706.03762).

    >>> import isobatch as ib
    >>> round(ib.schedules.vaswani(512, 4000).at(3999), 9)
    0.000698771
    """
    up = length("warmup_steps", warmup_steps)
    top = number("factor", factor) * length("model_dim", model_dim) ** -0.5 / math.sqrt(up)
    return lone(
        Segment(origin=-1.0, length=up, a=0.0, b=top, shape=Power()),
        Segment(start=up - 1, origin=up - 1, length=up, a=top, shape=Reciprocal(), beyond=True),
    )
