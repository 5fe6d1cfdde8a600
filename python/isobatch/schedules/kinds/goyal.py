"""goyal: ImageNet in one hour."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from isobatch.schedules.arguments import dropped, length, rate, rising, span
from isobatch.schedules.form import Segment
from isobatch.schedules.kind import Run, kind
from isobatch.schedules.lengths import Length
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import level, line


def _build(run: Run) -> list[Segment]:
    milestones = [Length(Fraction(epoch), "ep").steps(run.units, run.total) for epoch in (30, 60, 80)]
    return run.drops(milestones, 0.1)


@kind(_build)
def goyal(
    lr: float,
    steps_per_epoch: float,
    start: float = 0.0,
    warmup_epochs: float = 5.0,
    milestones: Iterable[float] = (30.0, 60.0, 80.0),
    gamma: float = 0.1,
) -> Schedule:
    """Start up to lr over five epochs, then a tenth at epochs 30, 60 and 80 (Goyal et al. 2017, arXiv:1706.02677).

    `start` is the learning rate of the small-batch run; milestones are epochs of the whole run.

    >>> import isobatch as ib
    >>> ib.schedules.goyal(3.2, 100, start=0.1).values([0, 500, 3000]).round(3).tolist()
    [0.1, 3.2, 0.32]
    """
    per_epoch = length("steps_per_epoch", steps_per_epoch)
    up = span("warmup_epochs", warmup_epochs) * per_epoch
    points = [epoch * per_epoch for epoch in rising("milestones", milestones, repeats=True)]
    base, factor = rate("lr", lr), rate("gamma", gamma)
    drops = [level(max(at, up), dropped(base, factor, count)) for count, at in enumerate(points, start=1)]
    rise = [line(0.0, up, rate("start", start), base)] if up else []
    return lone(*rise, level(up, base), *drops)
