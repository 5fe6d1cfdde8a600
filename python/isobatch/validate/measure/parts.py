"""The all-reduce inside each node, and between nodes on each rail: GPUs of the same local rank, which mostly share a NIC of their own. All
nodes measure at once, and all rails, as in a training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist

from isobatch.validate.measure import room
from isobatch.validate.measure.machine import seconds_of
from isobatch.validate.ranks.group import Group

BYTES = 256 << 20
REPEATS = 5


def members(group: Group) -> tuple[list[int], list[int]]:
    """The ranks of this rank's node, and those of its rail, in order."""
    here = [one.rank for one in group.roster if one.node == group.node]
    rail = [one.rank for one in group.roster if one.local_rank == group.local_rank]
    return here, rail


def measure(group: Group, size: int = BYTES) -> tuple[dict[str, float], dict[str, float]]:
    """Bus bandwidths in GB/s, as nccl-tests defines them: by host inside each node, by rail between nodes. Where a part has one rank it has
    no wire, and is left out.

    Args:
        size: bytes of the whole array, at most a quarter of what is free.
    """
    size = min(group.gather(min(size, room.on_device(group) // 4)))
    here, rail = members(group)
    buffer = torch.zeros(size // 4, dtype=torch.float32, device=group.device)
    found = [_bus_bandwidth(group, ranks, buffer) for ranks in (here, rail)]
    inside: dict[str, float] = {}
    rails: dict[str, list[float]] = {}
    for rank, (own, between) in zip(group.roster, group.gather(found), strict=True):
        if own is not None and rank.local_rank == 0:
            inside[
                f"host {rank.host}"
                if f"host {rank.host}" not in inside
                else f"host {rank.host} (node {rank.node})"
            ] = own
        if between is not None:
            rails.setdefault(f"rail {rank.local_rank} (GPU {rank.local_rank} of each node)", []).append(
                between
            )
    return inside, {name: min(values) for name, values in rails.items()}


def _bus_bandwidth(group: Group, ranks: Sequence[int], buffer: torch.Tensor) -> float | None:
    """Of this rank's own part, by its median time."""
    # All parts are made by all ranks at the same time, each by its own members only.
    cuda = group.device.type == "cuda"
    part = cast(
        dist.ProcessGroup, dist.new_group(list(ranks), use_local_synchronization=True, timeout=group.limit)
    )
    try:
        dist.all_reduce(buffer, group=part)
        group.barrier()
        took = []
        for _ in range(REPEATS):
            group.barrier()
            took.append(seconds_of(group, lambda: dist.all_reduce(buffer, group=part), cuda=cuda))
        count = len(ranks)
        if count == 1:
            return None
        return 2 * (count - 1) / count * buffer.numel() * 4 / statistics.median(took) / 1e9
    finally:
        dist.destroy_process_group(part)
