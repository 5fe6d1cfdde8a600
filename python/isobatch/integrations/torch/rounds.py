"""How the samples of a step are dealt out: PlanSampler and ElasticRun deal them alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Round(NamedTuple):
    """A round of micro-batches: the samples from `start` to `stop`, dealt out like cards to the first `sharing` replicas."""

    start: int
    stop: int
    sharing: int

    def of(self, replica: int) -> range:
        """The places that a replica takes; none where it has no part in the round."""
        return range(self.start + replica, self.stop if replica < self.sharing else 0, self.sharing)


def rounds(start: int, stop: int, micro_batch: int, replicas: int, *, whole: bool) -> Iterator[Round]:
    """The rounds of a step that has the samples from `start` to `stop`.

    Args:
        micro_batch: the most samples of a replica in a round.
        replicas: how many share a round.
        whole: the last round goes in whole micro-batches to the first replicas, as an `uneven` plan has it in full steps;
            else it is spread over as many as there are samples.

    >>> [[list(one.of(replica)) for replica in range(2)] for one in rounds(0, 6, 2, 2, whole=True)]
    [[[0, 2], [1, 3]], [[4, 5], []]]
    """
    for low in range(start, stop, micro_batch * replicas):
        high = min(low + micro_batch * replicas, stop)
        yield Round(low, high, (high - low) // micro_batch if whole else min(high - low, replicas))
