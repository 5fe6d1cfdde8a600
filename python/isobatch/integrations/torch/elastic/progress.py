"""Where a run is, and what is left of it for this replica: what its data, its loop and its schedulers share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isobatch.integrations.torch.elastic.dealing import Pass, Span, passes, spans
from isobatch.integrations.torch.elastic.exact import Planned
from isobatch.integrations.torch.elastic.rates import ElasticLR
from isobatch.reason import Reason


class Progress:
    """A run on one replica.

    Attributes:
        planned: how a step is laid out here, and the run that it is a step of.
        replica: which of the replicas this is.
        processes: of the whole run; with model parallelism more than replicas.
        step: steps done.
        seed, shuffle: of the data's order.
        schedulers: all that have to be stepped for a step to be done.
    """

    def __init__(
        self, planned: Planned, *, replica: int, processes: int, step: int, seed: int, shuffle: bool
    ) -> None:
        self.planned, self.replica, self.processes = planned, replica, processes
        self.step, self.seed, self.shuffle = step, seed, shuffle
        self.schedulers: list[ElasticLR] = []
        self._uneven = Reason.UNEVEN in planned.plan.reasons

    @property
    def rounds(self) -> int:
        """The passes of a full step, of the replica that makes the most: the first."""
        plan = self.planned.plan
        step = Span(0, 0, 0, plan.effective_batch or 0, full=True, last_of_epoch=False)
        return len(passes(plan, step, 0, uneven=self._uneven))

    @property
    def replicas(self) -> int:
        return self.planned.plan.data_parallel or 1

    def spans(self) -> Iterator[Span]:
        """The samples of each step that is left."""
        return spans(self.planned.course, self.step)

    def passes(self, span: Span, *, equal: bool, least: int = 1) -> list[Pass]:
        """What this replica does in a step."""
        return passes(self.planned.plan, span, self.replica, uneven=self._uneven, equal=equal, least=least)

    def __getstate__(self) -> dict[str, Any]:
        """For a DataLoader's worker, which needs no schedulers: they are tied to their optimizers."""
        return {**self.__dict__, "schedulers": []}
