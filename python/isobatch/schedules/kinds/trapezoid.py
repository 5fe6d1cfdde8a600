"""trapezoid: up, level, down."""

from __future__ import annotations

from isobatch.errors import must_be
from isobatch.schedules.arguments import length, span
from isobatch.schedules.compose import warmup
from isobatch.schedules.kind import LENGTH, Argument, kind
from isobatch.schedules.kinds.wsd import build_wsd, wsd
from isobatch.schedules.schedule import Schedule


@kind(build_wsd, decay=Argument(LENGTH))
def trapezoid(lr: float, steps: float, warmup_steps: float, decay_steps: float, end: float = 0.0) -> Schedule:
    """0 up to lr over warmup_steps, level, down to end over the last decay_steps, all straight.

    >>> import isobatch as ib
    >>> ib.schedules.trapezoid(1.0, 100, 10, 20).values([0, 5, 50, 90, 100]).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    total, up = length("steps", steps), span("warmup_steps", warmup_steps)
    if up >= total:
        raise must_be(f"shorter than the {total:g} steps of the run", warmup_steps, field="warmup_steps")
    return warmup(wsd(lr, total - up, decay_steps, end=end), up)
