"""The world of a run: this process's rank, and its replica."""

import os
import warnings
from typing import Any, NamedTuple

import torch.distributed as dist

from isobatch.errors import InputError

_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    # srun's own: an sbatch script has SLURM_NTASKS too, and is one process.
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)


class World(NamedTuple):
    """The processes of a run: this one's `rank` of `size`, `per_node` of them on a node (None: not known, or not equal)."""

    rank: int
    size: int
    per_node: int | None


def find_world() -> World:
    """Finds the world of the default process group, else of torchrun's variables, else of Slurm's, else this process alone.

    Raises:
        InputError: a launcher's variables are not numbers.
    """
    for launcher, *names in _LAUNCHERS:
        if all(name in os.environ for name in names[:2]):
            rank, size = (_number(launcher, name) for name in names[:2])
            local = os.environ.get(names[2], "")
            per_node = int(local) if local.isdigit() and int(local) and size % int(local) == 0 else None
            break
    else:
        rank, size, per_node = 0, 1, None
    if dist.is_available() and dist.is_initialized():
        rank, found = dist.get_rank(), dist.get_world_size()
        size, per_node = found, per_node if found == size else None
    return World(rank, size, per_node)


def replica_of(replica: Any, rank: int, replicas: int, size: int) -> int:
    """Returns this process's replica: its rank, or the user's, a number or a one-dimensional DeviceMesh.

    Raises:
        InputError: with model parallelism none was given, or there is no such replica.
    """
    if replica is None:
        if replicas != size:
            raise InputError(
                f"replica is missing: {size} processes hold {replicas} replicas; pass replica=, a number or the mesh's "
                'data-parallel dimension, such as mesh["dp"]',
                field="replica",
            )
        return rank
    index = replica.get_local_rank() if hasattr(replica, "get_local_rank") else replica
    if type(index) is not int or not 0 <= index < replicas:
        raise InputError(f"replica must be 0 to {replicas - 1}, got {index!r}", field="replica")
    return index


def check_rendezvous(rank: int) -> None:
    """Warns where torchrun's next restart would not get its processes together again."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    shares = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank == 0 and shares and restarts.isdigit() and int(restarts):
        warnings.warn(
            f"torchrun may restart this run {restarts} times, and its processes may then fail to connect: it hands them a store "
            "that still has the addresses of the ones before; start it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            stacklevel=3,
        )


def _number(launcher: str, name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise InputError(f"{launcher}'s {name} must be a whole number, got {text!r}", field=name)
    return int(text)
