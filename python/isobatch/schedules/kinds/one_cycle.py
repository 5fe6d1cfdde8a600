"""one_cycle: up and down, once."""

from __future__ import annotations

from isobatch.errors import InputError, must_be
from isobatch.schedules.arguments import length, rate
from isobatch.schedules.form import Cosine, Segment
from isobatch.schedules.kind import LENGTH, Argument, Run, kind
from isobatch.schedules.schedule import Schedule, lone


def _build(run: Run) -> list[Segment]:
    if run.warmup:
        return [run.tail(Cosine(), run.total - run.warmup, run.min_lr)]
    up = run.steps("rise", max(1, run.total * 3 // 10))
    if up >= run.total:
        raise InputError(
            f"rise must be shorter than the {run.total:,g} steps of the run, got {up:,g}", field="schedule"
        )
    return [
        Segment(length=up, a=run.peak / 25, b=run.peak, shape=Cosine()),
        Segment(start=up, origin=up, length=run.total - up, a=run.peak, b=run.min_lr, shape=Cosine()),
    ]


@kind(_build, rise=Argument(LENGTH))
def one_cycle(
    lr: float, steps: float, rise_steps: float, start: float | None = None, end: float | None = None
) -> Schedule:
    """Half a cosine from start up to lr over rise_steps, half a cosine down to end at `steps` (Smith, Topin 2018).

    start defaults to lr/25, end to start/10^4. Its boundaries are whole; torch's own, off by one, are those of
    `isobatch.schedules.torch.OneCycleLR`.

    >>> import isobatch as ib
    >>> ib.schedules.one_cycle(1.0, 100, 30, start=0.5, end=0.0).values([0, 15, 30, 65, 100]).tolist()
    [0.5, 0.75, 1.0, 0.5, 0.0]
    """
    top, total, up = rate("lr", lr), length("steps", steps), length("rise_steps", rise_steps)
    if up >= total:
        raise must_be(f"shorter than the {total:g} steps of the run", rise_steps, field="rise_steps")
    first = top / 25 if start is None else rate("start", start)
    last = first / 1e4 if end is None else rate("end", end)
    return lone(
        Segment(length=up, a=first, b=top, shape=Cosine()),
        Segment(start=up, origin=up, length=total - up, a=top, b=last, shape=Cosine()),
    )
