"""Whether there is room for what a proof needs beyond the training's own step. All ranks agree on it: one that ran out of memory alone
would leave the others waiting."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from isobatch.validate.ranks.group import Group


def on_device(group: Group) -> int:
    """Bytes that this rank can still take on its device: free, or held by the allocator and not given out. On a CPU this rank's share of
    its host's."""
    if group.device.type == "cuda":
        idle = torch.cuda.memory_reserved(group.device) - torch.cuda.memory_allocated(group.device)
        return int(torch.cuda.mem_get_info(group.device)[0]) + idle
    return on_host() // ranks_here(group)


def on_host() -> int:
    """Bytes that this host still has, or this container."""
    free = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: there is no limit
        limit, current = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current")
        )
        free.append(limit - current)
    return min(free, default=1 << 62)


def ranks_here(group: Group) -> int:
    """The ranks on this rank's host."""
    return sum(rank.node == group.node for rank in group.roster)


def lacking(group: Group, needed: int, free: int) -> str | None:
    """Why something is left out, the same on all ranks; None where all of them have room.

    Args:
        needed, free: this rank's, bytes.
    """
    short = [(need, there) for need, there in group.gather((needed, free)) if need > there]
    if not short:
        return None
    need, there = max(short)
    return f"no room ({need / 2**30:.3g} GiB needed, {there / 2**30:.3g} GiB free)"
