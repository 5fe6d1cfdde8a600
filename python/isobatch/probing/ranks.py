"""The processes of a probe: one alone, or those that the validator's launcher started."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from isobatch.errors import InputError, must_be
from isobatch.validate.ranks.group import Group

_CHUNK = 1 << 24
"""Elements of gradients that are summed at once."""


class Ranks(Protocol):
    """What a training needs of its processes."""

    rank: int
    world_size: int
    device: torch.device

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks of a tensor in the host's memory, in place."""

    def from_first(self, value: Any) -> Any:
        """Rank 0's value."""

    def gather(self, value: Any) -> list[Any]:
        """All ranks' values."""


class Alone:
    """This process."""

    rank, world_size = 0, 1

    def __init__(self, device: str = "auto") -> None:
        found = torch.cuda.is_available() if device != "cpu" else False
        if device == "cuda" and not found:
            raise must_be("cpu or auto; torch finds no CUDA device", device, field="device")
        self.device = torch.device("cuda" if found else "cpu")

    def total(self, values: Tensor) -> Tensor:
        """The values."""
        return values

    def from_first(self, value: Any) -> Any:
        """The value."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value."""
        return [value]


def agree(ranks: Ranks | Group, fault: InputError | None) -> None:
    """All ranks raise what one of them found, or none does.

    Raises:
        InputError: a rank found a fault.
    """
    said = None if fault is None else (fault.message, fault.field, fault.file)
    found = [one for one in ranks.gather(said) if one]
    if found:
        raise InputError(found[0][0], field=found[0][1], file=found[0][2])


def sum_gradients(ranks: Ranks | Group, parameters: list[torch.nn.Parameter]) -> None:
    """Gives every rank the sum of all ranks' gradients; one that a rank lacks counts as zeros."""
    if ranks.world_size == 1:
        return
    import torch.distributed as dist

    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    group: list[Tensor] = []
    grads = [p.grad for p in parameters if p.grad is not None]
    for index, grad in enumerate(grads):
        group.append(grad)
        if index == len(grads) - 1 or sum(g.numel() for g in group) >= _CHUNK:
            flat = torch.cat([g.reshape(-1) for g in group])
            dist.all_reduce(flat)
            start = 0
            for g in group:
                g.copy_(flat[start : start + g.numel()].view_as(g))
                start += g.numel()
            group = []


def first_ranks(ranks: Ranks | Group, tensors: list[Tensor]) -> None:
    """Gives every rank rank 0's values."""
    if ranks.world_size == 1:
        return
    import torch.distributed as dist

    for tensor in tensors:
        dense = tensor.detach().contiguous()
        dist.broadcast(dense, src=0)
        tensor.data.copy_(dense)
