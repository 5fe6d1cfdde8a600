"""The samples of a training as one stream that depends on the seed alone: not on the batch, and not on how it is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from isobatch.diagnosis.tensors import part
from isobatch.errors import InputError
from isobatch.validate.workload import Workload, user_code

EVALUATION = 7_919
"""The seed of the samples on which every trial is evaluated."""

TRIED = 4
"""Samples that are drawn to try a workload."""


class Stream:
    """A workload's samples in blocks, each drawn from a generator of its own: sample i is the same whoever asks for it.

    Args:
        workload: draws them.
        seed: of the stream.
        block: samples in a block.
        device: where they go.
    """

    def __init__(self, workload: Workload, seed: int, block: int, device: torch.device) -> None:
        self._workload, self._seed, self._block, self._device = workload, seed, block, device
        self._kept: tuple[int, Any] = (-1, None)

    def samples(self, start: int, stop: int) -> Any:
        """The samples from start to stop."""
        first, last = start // self._block, -(-stop // self._block)
        pieces = []
        for index in range(first, last):
            begin = index * self._block
            whole = self._made(index)
            low, high = max(start - begin, 0), min(stop - begin, self._block)
            pieces.append(whole if high - low == self._block else part(whole, low, high))
        return joined(pieces)

    def _made(self, index: int) -> Any:
        # A rank's micro-batches follow each other: the last block is often asked for again.
        if self._kept[0] != index:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
            with user_code("the workload's batch"):
                self._kept = (index, self._workload.batch(self._block, generator, self._device))
        return self._kept[1]


def joined(pieces: list[Any]) -> Any:
    """Pieces of a batch, one behind the other.

    >>> joined([{"x": torch.tensor([1])}, {"x": torch.tensor([2])}])["x"].tolist()
    [1, 2]
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: joined([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, Tensor):
        return torch.cat(pieces)
    if isinstance(first, tuple | list) and first and not isinstance(first[0], int | float | str):
        parts = [joined(list(column)) for column in zip(*pieces, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise InputError(
        f"batch must give tensors, or mappings or tuples of them, got {type(first).__name__}",
        field="workload",
    )


def tensors(batch: Any) -> list[Tensor]:
    """The tensors in a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return [tensor for one in inner for tensor in tensors(one)]


def check_reseeding(make: Callable[[int], Workload], device: torch.device) -> None:
    """Makes the workload twice from one seed, and draws a batch twice.

    Raises:
        InputError: the weights or the samples are others, or the samples are the same whatever the generator.
    """
    first, second = make(1), make(1)
    for name, weight in first.model.state_dict().items():
        if not torch.equal(weight, second.model.state_dict()[name]):
            raise InputError(
                f"cannot be reseeded: made twice after torch.manual_seed(1), {name!r} differs. Draw the weights from torch's, "
                "NumPy's or Python's own generator inside the factory",
                field="workload",
            )

    def drawn(workload: Workload, seed: int) -> list[Tensor]:
        with user_code("the workload's batch"):
            return tensors(workload.batch(TRIED, torch.Generator().manual_seed(seed), device))

    once, again, other = drawn(first, 1), drawn(first, 1), drawn(first, 2)
    if not once:
        raise InputError("batch must give tensors, or mappings or tuples of them", field="workload")
    wrong = next((t for t in once if not t.dim() or len(t) != TRIED), None)
    if wrong is not None:
        raise InputError(
            f"batch was asked for {TRIED} samples, and gave a tensor of shape {tuple(wrong.shape)}: the first dimension must be the "
            "samples",
            field="workload",
        )
    if not _equal(once, again):
        raise InputError(
            "cannot be reseeded: batch gave other samples for the same state of its generator. Draw indices from the generator",
            field="workload",
        )
    if _equal(once, other):
        raise InputError(
            "cannot be reseeded: batch gives the same samples whatever its generator. Draw indices from the generator",
            field="workload",
        )


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
