"""The processes of a run: this process's rank, their number, and its replica."""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from isobatch.errors import InputError
from isobatch.launch.environments import World, read_world


def find_world() -> World:
    """Finds the processes: from the default process group, else the launcher's variables, else this process
    alone."""
    world = read_world(os.environ)
    if not (dist.is_available() and dist.is_initialized()):
        return world
    size = dist.get_world_size()
    return World(dist.get_rank(), size, world.per_node if size == world.size else None)


def replica_of(replica: Any, rank: int, replicas: int, size: int) -> int:
    """Returns this process's replica: the user's number or one-dimensional DeviceMesh, else its rank."""
    if replica is None:
        if replicas != size:
            raise InputError(
                f"replica is missing: {size} processes hold {replicas} replicas; pass replica=, a number or "
                'the mesh\'s data-parallel dimension, such as mesh["dp"]',
                field="replica",
            )
        return rank
    index = replica.get_local_rank() if hasattr(replica, "get_local_rank") else replica
    if type(index) is not int or not 0 <= index < replicas:
        raise InputError(f"replica must be 0 to {replicas - 1}, got {index!r}", field="replica")
    return index


def set_timeout(timeout: timedelta, group: Any = None) -> None:
    """Sets the time-out of a group's collectives; torch before 2.9 names this function differently."""
    public = getattr(dist, "set_timeout", None)
    (public or dist.distributed_c10d._set_pg_timeout)(timeout, group)
