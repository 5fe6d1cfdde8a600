"""A crew's process group: formed anew under each list, cut where a rank is lost, and freed before the next."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from isobatch.integrations.torch.elastic.store import Store


class LeftOut(RuntimeError):
    """A process that was paused or cut off finds that the run went on without it."""


_MARKS = ("gloo", "NCCL", "ncclComm", "process group", "Process group", "ProcessGroup")


def is_loss(error: BaseException) -> bool:
    """Returns whether an error says that ranks cannot reach each other: torch has no type of its own for gloo's."""
    return isinstance(error, (LeftOut, dist.DistError)) or (
        isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
    )


class CrewGroup:
    """The process group of one crew.

    gloo's own abort leaves a rank in the collective that it waits in, so its sockets are shut down, all that were opened since the
    group was begun; NCCL has an abort that works. The rendezvous has a connection of its own to the store, which is cut with them.
    """

    def __init__(self) -> None:
        self._before: set[int] | None = None
        self._wrapped: list[Any] = []

    def begin(self) -> None:
        """Notes what is there before the group."""
        self._before = _sockets()

    def form(
        self, store: Store, number: int, rank: int, size: int, *, cuda: bool, lease: float, timeout: float
    ) -> None:
        """Forms the group; a rank that does not come is waited for no longer than the lease."""
        # torch names groups by a count in each process, and one that could not be formed leaves it: ranks would not meet again.
        dist.distributed_c10d._world.group_count = 0
        hook = sys.excepthook  # torch wraps it once more for each group.
        prefix = dist.distributed_c10d.PrefixStore(f"{number}/group", store.another().raw)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=prefix,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=max(lease, 5.0)),
        )
        sys.excepthook = hook
        dist.set_timeout(timedelta(seconds=timeout))

    def wrap(self, net: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Wraps a network in DDP; the state of all is the same already."""
        if dist.get_world_size() == 1:
            return net
        model = DistributedDataParallel(net, init_sync=False, **options)
        self._wrapped.append(model)
        return model

    def cut(self) -> None:
        """Ends what this rank waits for in the group, from another thread."""
        for group in _groups():
            with suppress(RuntimeError, AttributeError):
                group._get_backend(torch.device("cuda")).abort()
        for number in _sockets() - self._before if self._before is not None else ():
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
                listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if one.family in (socket.AF_INET, socket.AF_INET6) and not listens:
                    one.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Frees the group with its threads and sockets, also where the training still has the model that was wrapped."""
        self.cut()
        for model in self._wrapped:
            model._remove_autograd_hooks()
            for name in ("reducer", "logger", "process_group"):
                model.__dict__.pop(name, None)
        self._wrapped = []
        if dist.is_initialized():
            with warnings.catch_warnings(), suppress(RuntimeError):
                warnings.simplefilter("ignore")
                dist.destroy_process_group()


def _groups() -> list[Any]:
    return [group for group in [*dist.distributed_c10d._world.pg_map] if group is not None]


def _sockets() -> set[int]:
    """Returns the file descriptors that are sockets; none where the system does not list them."""
    with suppress(OSError):
        return {int(path.name) for path in Path("/proc/self/fd").iterdir() if _is_socket(path)}
    return set()


def _is_socket(path: Path) -> bool:
    with suppress(OSError):
        return str(path.readlink()).startswith("socket:")
    return False
