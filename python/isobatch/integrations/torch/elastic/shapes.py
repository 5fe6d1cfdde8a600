"""Compares the sizes of the tensors passed to a collective by all ranks: gloo aborts a process that receives
too much.
"""

from collections.abc import Sequence
from typing import Any

import torch

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.parcels import TYPES

_ALIKE = {
    "allreduce": 0,
    "broadcast": 0,
    "reduce": 0,
    "allgather": 1,
    "_allgather_base": 1,
    "reduce_scatter": 0,
    "_reduce_scatter_base": 0,
}
"""The index of the argument with the same size on all ranks, by collective."""

_TYPES = sorted(TYPES)


def check_sizes(group: Any, name: str, args: Sequence[Any]) -> None:
    """Compares a collective's name and its tensor's size and type among the ranks of a group, before it
    begins."""
    place = _ALIKE.get(name, len(args))
    if place >= len(args) or group.size() == 1:
        return
    tensor = args[place]
    while isinstance(tensor, list):
        tensor = tensor[0]
    row = torch.tensor([[*_ALIKE].index(name), tensor.numel(), _TYPES.index(str(tensor.dtype))])
    table = torch.empty(group.size() * len(row), dtype=row.dtype)
    group.cord.wait(group.gloo._allgather_base(table, row))
    rows = table.view(-1, len(row)).tolist()
    for rank, row_of_rank in enumerate(rows):
        if row_of_rank != rows[0]:
            raise InputError(
                f"the ranks' collectives do not match: {_shown(rows[0])} on rank 0, {_shown(row_of_rank)} on "
                f"rank {rank}; all ranks must call the same ones, in the same order, with tensors of the "
                "same shape"
            )


def _shown(row: list[int]) -> str:
    name, size, kind = row
    return f"{[*_ALIKE][name].strip('_')} of {size:,} {_TYPES[kind].removeprefix('torch.')}"
