"""The data of an elastic run: the micro-batches that this replica takes, from the run's step to its end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from isobatch.integrations.torch.elastic.progress import Progress


class RunBatches(Sampler[list[int]]):
    """A DataLoader's `batch_sampler` for the rest of a run: each time it is iterated it starts at the run's step."""

    def __init__(self, progress: Progress, size: int, *, equal: bool, least: int = 1) -> None:
        self._run, self._size, self.equal = progress, size, equal
        self._least = least
        self._shuffled: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Micro-batches that this replica still takes, over all epochs that are left."""
        return sum(
            len(self._run.passes(span, equal=self.equal, least=self._least)) for span in self._run.spans()
        )

    def __iter__(self) -> Iterator[list[int]]:
        for span in self._run.spans():
            for one in self._run.passes(span, equal=self.equal, least=self._least):
                places = np.arange(one.start, one.stop, one.stride)
                yield (self._order(span.epoch)[places] if self._run.shuffle else places).tolist()

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The epoch's order, the same on all replicas."""
        if self._shuffled is None or self._shuffled[0] != epoch:
            generator = torch.Generator().manual_seed(self._run.seed + epoch)
            self._shuffled = epoch, torch.randperm(self._size, generator=generator).numpy()
        return self._shuffled[1]
