"""The data of an elastic run: the micro-batches that this replica takes, from the run's step to its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.dealing import Span
from isobatch.integrations.torch.elastic.progress import Progress
from isobatch.integrations.torch.elastic.stream import RunStream

DECIDED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
"""The DataLoader's options that are the plan's."""


class RunBatches(Sampler[list[int]]):
    """A DataLoader's `batch_sampler` for the rest of a run: each time it is iterated it starts at the run's step."""

    def __init__(self, progress: Progress, size: int, *, equal: bool, least: int = 1) -> None:
        self._run, self._size, self.equal = progress, size, equal
        self._least = least
        self._shuffled: dict[int, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        """Micro-batches that this replica still takes, over all epochs that are left."""
        return sum(
            len(self._run.passes(span, equal=self.equal, least=self._least)) for span in self._run.spans()
        )

    def __iter__(self) -> Iterator[list[int]]:
        for span in self._run.spans():
            for one in self._run.passes(span, equal=self.equal, least=self._least):
                if one.places[-1] < self._size:
                    places = np.arange(one.places.start, one.places.stop, one.places.step)
                    yield (self._order(span, 0)[places] if self._run.shuffle else places).tolist()
                else:  # Under a ramp a step goes on in the next epoch.
                    yield [self._sample(span, *divmod(place, self._size)) for place in one.places]

    def _sample(self, span: Span, epochs: int, place: int) -> int:
        return int(self._order(span, epochs)[place]) if self._run.shuffle else place

    def _order(self, span: Span, epochs: int) -> NDArray[np.int64]:
        """The order, the same on all replicas, of the epoch that a step is in, or of one `epochs` later; those before it are let go."""
        epoch = span.epoch + epochs
        if epoch not in self._shuffled:
            generator = torch.Generator().manual_seed(self._run.seed + epoch)
            kept = {at: order for at, order in self._shuffled.items() if at >= span.epoch}
            self._shuffled = {**kept, epoch: torch.randperm(self._size, generator=generator).numpy()}
        return self._shuffled[epoch]


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be iterated."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def loader_of(
    progress: Progress, dataset: Any, options: dict[str, Any], *, equal: bool, least: int = 1
) -> DataLoader[Any]:
    """A DataLoader of this replica's micro-batches, of a dataset with places or of a stream.

    Raises:
        InputError: the dataset is not as long as the recipe says, or an option is the plan's.
    """
    stream = is_stream(dataset)
    for name in (*DECIDED, "persistent_workers") if stream else DECIDED:
        if name in options:
            raise InputError(f"{name} is the plan's to decide: leave it out", field=name)
    if stream:
        if options.get("num_workers", 0) > 1:
            raise InputError(
                f"num_workers must be 0 or 1 for a stream, which is read in one order, got {options['num_workers']}",
                field="num_workers",
            )
        options = {"collate_fn": default_collate, **options}
        return DataLoader(RunStream(progress, dataset, equal=equal, least=least), batch_size=None, **options)
    size, expected = len(dataset), progress.planned.plan.recipe.dataset_size
    if expected != size:
        raise InputError(
            f"dataset_size must be {size:,}, as the dataset has, got {expected!r}", field="dataset_size"
        )
    return DataLoader(dataset, batch_sampler=RunBatches(progress, size, equal=equal, least=least), **options)


def passes_are_equal(loader: Any) -> bool:
    """Whether the replicas make the same number of passes in a step, by how their loader was made."""
    sources = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    return any(source.equal for source in sources if isinstance(source, (RunBatches, RunStream)))
