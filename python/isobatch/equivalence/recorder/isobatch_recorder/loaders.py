"""The rows of the dataset that each loader draws, and the drawing of given rows in their place."""

from __future__ import annotations

from typing import Any

import torch.utils.data.dataloader as dataloader

from .record import Recorder


def install(recorder: Recorder) -> None:
    """Watches the draws of torch's loaders in the main process, before any worker loads a row.

    Ranks of another number rightly draw other rows (a RandomSampler in one process, a DistributedSampler in several): the rows that
    the asked split drew are drawn in every other one.
    """
    iterators: Any = dataloader._BaseDataLoaderIter
    next_index = iterators._next_index
    loaders: dict[int, dict[str, Any]] = {}
    given = recorder.settings["rows"]
    remaining = (
        {} if given is None else {given["loader"]: list(given["ranks"][recorder.rank % len(given["ranks"])])}
    )

    def draw(self: Any) -> Any:
        batch = next_index(self)
        indices = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if not all(hasattr(index, "__index__") for index in indices):
            return batch
        dataset = self._dataset
        if id(dataset) not in loaders:
            # The dataset is kept, so that no other one gets its id.
            loaders[id(dataset)] = {
                "rows": len(dataset) if hasattr(dataset, "__len__") else None,
                "batches": [],
                "own": [],
            }
            recorder.datasets.append(dataset)
            recorder.drawn.append(loaders[id(dataset)])
        loader = loaders[id(dataset)]
        number = recorder.drawn.index(loader)
        loader["own"].append([int(index) for index in indices])
        rows = remaining.get(number, [])
        if len(rows) >= len(indices):
            indices, remaining[number] = rows[: len(indices)], rows[len(indices) :]
            batch = indices if isinstance(batch, (list, tuple)) else indices[0]
        elif number in remaining:
            recorder.note("a loader drew more rows than were given")
        loader["batches"].append([int(index) for index in indices])
        return batch

    iterators._next_index = draw
