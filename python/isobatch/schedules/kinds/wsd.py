"""wsd: level, then down."""

from __future__ import annotations

from isobatch.errors import InputError, must_be
from isobatch.schedules.arguments import choice, length, rate
from isobatch.schedules.form import Segment
from isobatch.schedules.kind import LENGTH, WORD, Argument, Run, kind, tails
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import level


def build_wsd(run: Run) -> list[Segment]:
    """Level until the decay, which ends with the run; by default its last fifth."""
    over = run.steps("decay", max(1, run.total // 5))
    left = run.total - run.warmup
    if over > left:
        raise InputError(
            f"decay must be at most the {left:,g} steps after the warmup, got {over:,g}", field="schedule"
        )
    at = run.total - over
    shape = tails()[run.word("shape", "linear")]
    fall = Segment(start=at, origin=at, length=over, a=run.peak, b=run.min_lr, shape=shape)
    return [level(run.warmup, run.peak), fall]


@kind(build_wsd, decay=Argument(LENGTH), shape=Argument(WORD))
def wsd(lr: float, steps: float, decay_steps: float, shape: str = "linear", end: float = 0.0) -> Schedule:
    """Stable, then decay: lr until steps − decay_steps, then down to end at `steps` (Hu et al. 2024, arXiv:2404.06395).

    `shape` is the decay: "linear", "cosine", "one_minus_sqrt" or "rex". Put `warmup` in front for its warmup.

    >>> import isobatch as ib
    >>> ib.schedules.wsd(1.0, 100, 20).values([80, 90, 100]).tolist()
    [1.0, 0.5, 0.0]
    """
    peak, bottom = rate("lr", lr), rate("end", end)
    total, over = length("steps", steps), length("decay_steps", decay_steps)
    if over > total:
        raise must_be(f"at most the {total:g} steps of the run", decay_steps, field="decay_steps")
    at, curve = total - over, tails()[choice("shape", shape, tails())]
    decay = Segment(start=at, origin=at, length=over, a=peak, b=bottom, shape=curve)
    return lone(decay) if at == 0 else lone(level(0.0, peak), decay)
