"""cosine_restarts: cosines, one after another."""

from __future__ import annotations

from isobatch.schedules.arguments import length, number, rate
from isobatch.schedules.form import Cosine, Cycle, Inner, Segment
from isobatch.schedules.kind import LENGTH, NUMBER, Argument, Run, kind
from isobatch.schedules.schedule import Schedule, lone


def _build(run: Run) -> list[Segment]:
    period = run.steps("period", 1)
    cycle = Cycle(
        period=period, multiplier=run.number("multiplier", 1.0), peak_decay=run.number("decay", 1.0)
    )
    wave = Segment(length=period, a=run.peak, b=run.min_lr, shape=Cosine())
    inner = Inner(form=lone(wave, cycle=cycle).form)
    return [Segment(start=run.warmup, origin=run.warmup, shape=inner, beyond=True)]


@kind(_build, period=Argument(LENGTH, required=True), multiplier=Argument(NUMBER), decay=Argument(NUMBER))
def cosine_restarts(
    lr: float, period: float, multiplier: float = 1.0, decay: float = 1.0, end: float = 0.0
) -> Schedule:
    """Cosines from lr·decay^i to end, cycle i of period·multiplier^i steps (SGDR, arXiv:1608.03983).

    >>> import isobatch as ib
    >>> ib.schedules.cosine_restarts(1.0, 10, multiplier=2).values([0, 5, 10, 20, 30]).tolist()
    [1.0, 0.5, 1.0, 0.5, 1.0]
    """
    over = length("period", period)
    cycle = Cycle(period=over, multiplier=number("multiplier", multiplier), peak_decay=rate("decay", decay))
    return lone(Segment(length=over, a=rate("lr", lr), b=rate("end", end), shape=Cosine()), cycle=cycle)
