"""Which samples a step has, and which of them each replica takes: the same steps at every number of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from isobatch.planning.plan import Plan


class Span(NamedTuple):
    """The samples of one optimizer step: `samples` of them behind the first `offset` of the epoch's order."""

    number: int
    epoch: int
    offset: int
    samples: int
    last_of_epoch: bool


class Pass(NamedTuple):
    """One forward and backward of a replica: every `stride`-th place of the epoch's order from `start` to `stop`.

    `samples` of them enter the step: none where it is a stand-in, whose one sample keeps the replica in its collectives.
    """

    start: int
    stop: int
    stride: int
    samples: int
    last: bool

    @property
    def stand_in(self) -> bool:
        return not self.samples


def spans(plan: Plan, dataset: int, step: int) -> Iterator[Span]:
    """The steps of a run from `step` to its end.

    An epoch is ⌈dataset / batch⌉ steps, the last of them with what is left of it; ⌊dataset / batch⌋ where the recipe drops that.
    """
    here = plan.position(step)
    epoch, offset = here.epoch or 0, here.offset or 0
    batch = plan.effective_batch or 0
    least = batch if plan.recipe.drop_last else 1
    for number in range(step, plan.total_steps or 0):
        samples = min(batch, dataset - offset)
        ends = dataset - offset - samples < least
        yield Span(number, epoch, offset, samples, ends)
        epoch, offset = (epoch + 1, 0) if ends else (epoch, offset + samples)


def passes(
    plan: Plan, span: Span, replica: int, *, uneven: bool, equal: bool = False, least: int = 1
) -> list[Pass]:
    """What a replica does in a step.

    Micro-batches go round by round, and a round's samples are dealt out like cards, so that the step's samples do not depend on
    the replicas. In `uneven` plans the replicas of a full step's last round take whole micro-batches.

    Args:
        equal: every replica makes the same number of passes, those it lacks being stand-ins.
        least: the number of passes below which none makes, likewise.
    """
    micro, replicas = plan.micro_batch or 1, plan.data_parallel or 1
    stop = span.offset + span.samples
    whole = uneven and span.samples == plan.effective_batch
    own: list[Pass] = []
    rounds = 0
    for low in range(span.offset, stop, micro * replicas):
        rounds += 1
        high = min(low + micro * replicas, stop)
        sharing = (high - low) // micro if whole else min(high - low, replicas)
        if replica < sharing:
            own.append(
                Pass(low + replica, high, sharing, len(range(low + replica, high, sharing)), last=False)
            )
    stand_in = Pass(span.offset, span.offset + 1, 1, 0, last=False)
    own += [stand_in] * (max(least, rounds if equal else 1) - len(own))
    own[-1] = own[-1]._replace(last=True)
    return own
