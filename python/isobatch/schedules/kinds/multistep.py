"""multistep: a drop at each milestone."""

from __future__ import annotations

from collections.abc import Iterable

from isobatch.schedules.arguments import dropped, rate, rising
from isobatch.schedules.form import Segment
from isobatch.schedules.kind import LENGTH, NUMBER, Argument, Run, kind
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import level


def _build(run: Run) -> list[Segment]:
    milestones = [milestone.steps(run.units, run.total) for milestone in run.spec.arguments["milestones"]]
    return run.drops(milestones, run.number("gamma", 0.1))


@kind(_build, milestones=Argument(LENGTH, required=True, many=True), gamma=Argument(NUMBER))
def multistep(lr: float, milestones: Iterable[float], gamma: float = 0.1) -> Schedule:
    """lr·gamma^(milestones reached); a milestone listed twice counts twice.

    >>> import isobatch as ib
    >>> ib.schedules.multistep(1.0, [30, 60], gamma=0.5).values([29, 30, 60]).tolist()
    [1.0, 0.5, 0.25]
    """
    base, factor = rate("lr", lr), rate("gamma", gamma)
    points = rising("milestones", milestones, repeats=True)
    levels = {0.0: base}
    for count, at in enumerate(points, start=1):
        levels[at] = dropped(base, factor, count)
    return lone(*(level(at, value) for at, value in levels.items()))
