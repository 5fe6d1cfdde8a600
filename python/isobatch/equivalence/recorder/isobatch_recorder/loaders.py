"""The dataset rows of each loader, recorded, or replaced by given rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data.dataloader as dataloader

from .record import Recorder
from .sizes import maker


def install(recorder: Recorder) -> None:
    """Watches the draws of torch's loaders in the main process, before any worker loads a row.

    Ranks of another number rightly draw other rows (a RandomSampler in one process, a DistributedSampler in
    several): the rows that the requested split drew are drawn in every other one.
    """
    iterators: Any = dataloader._BaseDataLoaderIter
    next_index = iterators._next_index
    loaders: dict[tuple[Any, ...], dict[str, Any]] = {}
    iterations: dict[int, Any] = {}
    remaining: list[int] | None = None

    def loader_of(dataset: Any, sampler: Any) -> dict[str, Any]:
        """Returns the draws from a dataset, for all of its loaders with one kind of sampler."""
        trains = torch.is_grad_enabled()
        size = getattr(sampler, "batch_size", None)
        sampler, drops = _innermost(sampler)
        key = id(dataset), trains, size, type(sampler)
        if key not in loaders:
            rows = len(dataset) if hasattr(dataset, "__len__") else None
            kind = f"{type(dataset).__name__} of {rows} rows with{'' if trains else 'out'} gradients"
            alike = sum(loader["name"].startswith(kind) for loader in recorder.drawn)
            loader: dict[str, Any] = {
                "name": f"{kind}, {alike}",
                "rows": rows,
                "passes": 0,
                "drops": drops,
                "starts": [],
                "batches": [],
                "own": [],
            }
            loaders[key] = loader
            recorder.datasets.append(dataset)  # it is kept, so that no other one gets its id
            recorder.drawn.append(loader)
        return loaders[key]

    def draw(self: Any) -> Any:
        nonlocal remaining
        batch = next_index(self)
        if torch.is_grad_enabled():
            size = getattr(self._index_sampler, "batch_size", None)
            recorder.typed.drawn_by = maker(recorder, self._dataset, size)
        indices = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if not all(hasattr(index, "__index__") for index in indices):
            return batch
        loader = loader_of(self._dataset, self._index_sampler)
        recorder.drawn_from = loader
        if self._sampler_iter is not iterations.get(id(loader)):
            iterations[id(loader)] = self._sampler_iter  # kept, so that no later one gets its id
            loader["starts"].append(len(loader["own"]))
        loader["own"].append([int(index) for index in indices])
        fixed_rows = recorder.settings["rows"]
        if fixed_rows is not None and fixed_rows["loader"] == loader["name"]:
            if remaining is None:
                remaining = list(fixed_rows["ranks"][recorder.rank % len(fixed_rows["ranks"])])
            if len(remaining) >= len(indices):
                indices, remaining = remaining[: len(indices)], remaining[len(indices) :]
                batch = indices if isinstance(batch, (list, tuple)) else indices[0]
            else:
                recorder.note("a loader drew more rows than were given")
        loader["batches"].append([int(index) for index in indices])
        return batch

    iterators._next_index = draw
    _count_batches(recorder, iterators)


def _count_batches(recorder: Recorder, iterators: Any) -> None:
    """Counts the loaders' batches as they are given: workers draw ahead."""
    next_batch = iterators.__next__

    def give(self: Any) -> Any:
        if torch.is_grad_enabled():
            recorder.batches_given += 1
        return next_batch(self)

    iterators.__next__ = give


def _innermost(sampler: Any) -> tuple[Any, dict[str, bool]]:
    """Returns the sampler of rows, and whether the loader, and a sampler over ranks, drop the last rows."""
    drops = {"loader": bool(getattr(sampler, "drop_last", False))}
    while (inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)) is not None:
        sampler = inner
        if hasattr(sampler, "num_replicas"):
            drops["sampler"] = bool(getattr(sampler, "drop_last", False))
    return sampler, drops
