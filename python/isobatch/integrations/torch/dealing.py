"""Deals the samples of each step to the replicas: the same steps at every number of replicas, in PlanSampler and ElasticRun alike."""

from collections.abc import Iterator
from typing import NamedTuple

from isobatch.planning.plan import Plan


class Deal(NamedTuple):
    """One round of micro-batches: the samples from `start` to `stop`, dealt out like cards to the first `sharing` replicas."""

    start: int
    stop: int
    sharing: int

    def of(self, replica: int) -> range:
        """Returns the places of a replica; none where it has no part in the round."""
        return range(self.start + replica, self.stop if replica < self.sharing else 0, self.sharing)


def deals(start: int, stop: int, micro_batch: int, replicas: int, *, whole: bool) -> Iterator[Deal]:
    """Yields the rounds of a step with the samples from `start` to `stop`.

    Args:
        micro_batch: the most samples of a replica in a round.
        replicas: how many share a round.
        whole: the last round goes in whole micro-batches to the first replicas, as an `uneven` plan has it in full steps;
            else it is spread over as many as there are samples.

    >>> [[list(one.of(replica)) for replica in range(2)] for one in deals(0, 6, 2, 2, whole=True)]
    [[[0, 2], [1, 3]], [[4, 5], []]]
    """
    for low in range(start, stop, micro_batch * replicas):
        high = min(low + micro_batch * replicas, stop)
        yield Deal(low, high, (high - low) // micro_batch if whole else min(high - low, replicas))


class Span(NamedTuple):
    """The samples of one optimizer step: `samples` of them behind the first `offset` of the epoch's order.

    `full` steps have the batch of their stage. A stream, whose epochs do not end steps, goes on in the next epoch's order; it is one
    epoch where the dataset's size is not known.
    """

    number: int
    epoch: int
    offset: int
    samples: int
    full: bool
    last_of_epoch: bool


class Pass(NamedTuple):
    """One forward and backward of a replica, on these places of the epoch's order.

    `samples` of them enter the step: none where it is a stand-in, whose one sample keeps the replica in its collectives. After it all
    replicas are at `stop` of the epoch's order.
    """

    places: range
    samples: int
    last: bool
    stop: int

    @property
    def stand_in(self) -> bool:
        """Whether no sample of it enters the step."""
        return not self.samples


def spans(course: Plan, step: int) -> Iterator[Span]:
    """Yields the steps of a run from `step` to its end.

    An epoch is ⌈dataset / batch⌉ steps, the last of them with what is left of it; ⌊dataset / batch⌋ where the recipe drops that.
    Under a batch ramp, which counts through the epochs, and where the dataset's size is not known, all steps are full.
    """
    dataset = course.recipe.dataset_size
    if dataset is None or course.recipe.ramp is not None:
        yield from _of_a_stream(course, dataset, step)
        return
    here = course.position(step)
    epoch, offset = here.epoch or 0, here.offset or 0
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
            yield Span(
                number,
                epoch,
                offset,
                stage.batch,
                True,
                dataset is not None and offset + stage.batch >= dataset,
            )


def passes(
    plan: Plan, span: Span, replica: int, *, uneven: bool, equal: bool = False, least: int = 1
) -> list[Pass]:
    """Lists the passes of a replica in a step.

    Micro-batches go round by round, and a round's samples are dealt out like cards, so that the step's samples do not depend on
    the replicas. In `uneven` plans the replicas of a full step's last round take whole micro-batches.

    Args:
        equal: every replica makes the same number of passes, those it lacks being stand-ins.
        least: the number of passes below which none makes, likewise.
    """
    micro, replicas = plan.micro_batch or 1, plan.data_parallel or 1
    stop = span.offset + span.samples
    every = [*deals(span.offset, stop, micro, replicas, whole=uneven and span.full)]
    own = [
        Pass(places := one.of(replica), len(places), False, one.stop)
        for one in every
        if replica < one.sharing
    ]
    lacking = max(least, len(every) if equal else 1) - len(own)
    if lacking > 0:
        own += [Pass(range(span.offset, span.offset + 1), 0, False, stop)] * lacking
    places, samples, _, after = own[-1]
    own[-1] = Pass(places, samples, True, after)
    return own
