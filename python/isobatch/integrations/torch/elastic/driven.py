"""A run whose steps a trainer takes in a loop of its own, with the same number of micro-batches in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from isobatch.integrations.torch.elastic.agreement import Agreements, Ranks
from isobatch.integrations.torch.elastic.batches import loader_of
from isobatch.integrations.torch.elastic.progress import Progress
from isobatch.integrations.torch.elastic.rates import ElasticLR
from isobatch.integrations.torch.elastic.steps import Step, next_batch
from isobatch.integrations.torch.elastic.stopping import Signals


class Driven:
    """A run for a trainer, which says when a step begins and ends.

    Attributes:
        passes: micro-batches in every step, the trainer's accumulation. Where a step has fewer, stand-ins with factor 0 follow.
    """

    current: Step | None = None
    unfinished: str | None = None

    def __init__(self, progress: Progress, ranks: Ranks) -> None:
        self._progress = progress
        self.passes = progress.rounds
        self._signals = Signals()
        self._agreements = Agreements(ranks)
        self.asked = False

    @property
    def stopping(self) -> bool:
        """Whether some rank was asked to stop, as agreed on last."""
        return self._agreements.stopping

    def loader(self, dataset: Any, join: Join, **options: Any) -> WholeSteps:
        """The micro-batches of the steps that are left, each joined with its factor."""
        batches = loader_of(self._progress, dataset, options, equal=True, least=self.passes)
        return WholeSteps(self._progress, self.passes, batches, join)

    def scheduler(self, optimizer: Optimizer) -> ElasticLR:
        """A scheduler that the trainer steps, or not where its scaler skipped the optimizer's step."""
        made = ElasticLR(optimizer, self._progress.planned.course, self._progress.step, lambda _: None)
        self._progress.schedulers = [made]
        return made

    def begin(self) -> None:
        """The training begins: signals are noted."""
        self._signals.__enter__()

    def begin_step(self) -> None:
        """A step begins: if it is time, the ranks agree on whether to stop after it."""
        self._agreements.begin_step(self._signals.received or self.asked)

    def end_step(self) -> None:
        """A step is done, also where the optimizer's was skipped."""
        self._progress.step += 1
        for scheduler in self._progress.schedulers:
            scheduler.go_to(self._progress.step)

    def end(self) -> None:
        """The training ends: the handlers before are put back."""
        self._signals.__exit__()


class WholeSteps:
    """A loader of whole steps, as long as what is left of the run; each batch is joined with its factor.

    The factor is that of the micro-batch's mean loss, times the passes by which the trainer divides it.
    """

    def __init__(self, progress: Progress, passes: int, loader: DataLoader[Any], join: Join) -> None:
        self._progress, self._passes, self._loader, self._join = progress, passes, loader, join
        self.batch_sampler, self.dataset = loader.batch_sampler, loader.dataset

    def __len__(self) -> int:
        return self._passes * ((self._progress.planned.plan.total_steps or 0) - self._progress.step)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        scale = self._progress.replicas * self._passes
        for span in self._progress.spans():
            for one in self._progress.passes(span, equal=True, least=self._passes):
                yield self._join(next_batch(batches, span.number), one.samples * scale / span.samples)


Join = Callable[[Any, float], Any]
"""Puts a batch and its factor together; the factor of a stand-in is 0."""
