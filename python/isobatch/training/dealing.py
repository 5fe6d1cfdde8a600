"""Deals the samples of each step to the replicas: the same steps at every number of replicas."""

from collections.abc import Iterator
from typing import NamedTuple

from isobatch.planning.plan import Plan
from isobatch.reason import Reason


class Span(NamedTuple):
    """The samples of one optimizer step: `samples` of them after the first `offset` of the epoch's order.

    `full` steps have the batch of their stage. In a stream a step may continue in the next epoch's order; a
    stream of unknown size is a single epoch.
    """

    number: int
    epoch: int
    offset: int
    samples: int
    full: bool
    last_of_epoch: bool


class Pass(NamedTuple):
    """One forward and backward of a replica, on these places of the epoch's order.

    `samples` of them count in the step: 0 in a stand-in, whose single sample only keeps the replica in the
    collectives. After the pass all replicas are at place `stop` of the epoch's order.
    """

    places: range
    samples: int
    last: bool
    stop: int

    @property
    def stand_in(self) -> bool:
        """Whether none of its samples counts in the step."""
        return not self.samples


def spans(course: Plan, step: int) -> Iterator[Span]:
    """Yields the steps of a run from `step` to its end.

    An epoch is ⌈dataset / batch⌉ steps, the last one with the remaining samples; or ⌊dataset / batch⌋ steps
    if the recipe drops those. All steps are full with a batch ramp, which counts across epochs, and if the
    dataset's size is not known.
    """
    dataset = course.recipe.dataset_size
    if dataset is None or course.recipe.ramp is not None:
        yield from _of_a_stream(course, dataset, step)
        return
    position = course.position(step)
    epoch, offset = position.epoch or 0, position.offset or 0
    batch = course.effective_batch or 0
    least = batch if course.recipe.drop_last else 1
    for number in range(step, course.total_steps or 0):
        samples = min(batch, dataset - offset)
        ends = dataset - offset - samples < least
        yield Span(number, epoch, offset, samples, samples == batch, ends)
        epoch, offset = (epoch + 1, 0) if ends else (epoch, offset + samples)


def _of_a_stream(course: Plan, dataset: int | None, step: int) -> Iterator[Span]:
    at = course.position(step).samples
    stages = course.stages
    ends = [*(stage.step for stage in stages[1:]), course.total_steps or 0]
    for stage, end in zip(stages, ends, strict=True):
        for number in range(max(step, stage.step), end):
            epoch, offset = (0, at) if dataset is None else divmod(at, dataset)
            at += stage.batch
            last = dataset is not None and offset + stage.batch >= dataset
            yield Span(number, epoch, offset, stage.batch, full=True, last_of_epoch=last)


def passes(plan: Plan, span: Span, replica: int, *, equal: bool = False, least: int = 1) -> list[Pass]:
    """Lists the passes of a replica in a step.

    Micro-batches go round by round, and a round's samples are dealt out like cards, so that the step's
    samples do not depend on the replicas. In uneven plans the last round of a full step goes to the first
    replicas, in whole micro-batches; else it is spread over all replicas, as far as there are samples.
    Stand-ins fill missing passes, of every replica up to `least`, and of `equal` ones up to the first's.

    >>> import isobatch as ib
    >>> plan = ib.plan(ib.Recipe(effective_batch=10, lr=0.1), 4, max_micro_batch=2, split="uneven")
    >>> step = Span(0, 0, 0, 10, full=True, last_of_epoch=False)
    >>> [[list(portion.places) for portion in passes(plan, step, replica)] for replica in (0, 3)]
    [[[0, 4], [8, 9]], [[3, 7]]]
    """
    micro, replicas = plan.micro_batch or 1, plan.data_parallel or 1
    in_whole = span.full and Reason.UNEVEN in plan.reasons
    stop, own, rounds = span.offset + span.samples, list[Pass](), 0
    for low in range(span.offset, stop, micro * replicas):
        high, rounds = min(low + micro * replicas, stop), rounds + 1
        sharing = (high - low) // micro if in_whole else min(high - low, replicas)
        if replica < sharing:
            places = range(low + replica, high, sharing)
            own.append(Pass(places, len(places), False, high))
    lacking = max(least, rounds if equal else 1) - len(own)
    if lacking > 0:
        own += [Pass(range(span.offset, span.offset + 1), 0, False, stop)] * lacking
    places, samples, _, after = own[-1]
    own[-1] = Pass(places, samples, True, after)
    return own
