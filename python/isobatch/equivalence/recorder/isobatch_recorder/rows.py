"""Random draws while a row is loaded, seeded by the row: its augmentation is the same in any batch."""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

import torch
from torch.utils.data._utils import fetch as fetching

from .record import Recorder


def install(recorder: Recorder, draws: Any) -> None:
    """Seeds the generators by each loaded row, in the main process and in workers, but not for the collator."""

    def fetch(self: Any, index: Any) -> Any:
        states = generator_states()
        try:
            with draws.loading():
                items = (
                    [_load(self.dataset, row) for row in index]
                    if self.auto_collation
                    else _load(self.dataset, index)
                )
            _seed(0)
            with draws.collating():
                return self.collate_fn(items)
        finally:
            restore(states)

    fetching._MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def _load(dataset: Any, row: Any) -> Any:
    _seed(zlib.crc32(repr(int(row) if hasattr(row, "__index__") else row).encode()))
    return dataset[row]


def _seed(number: int) -> None:
    torch.default_generator.manual_seed(number)
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)


def generator_states() -> list[Any]:
    """Returns the states of torch's, Python's and NumPy's generators."""
    numpy = sys.modules.get("numpy")
    return [torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()]


def restore(states: list[Any]) -> None:
    """Restores the generators' states."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])
