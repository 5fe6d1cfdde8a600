"""A crew's process group: formed for each crew, cut when a rank is lost, and freed before the next crew."""

import ctypes
import os
import socket
import sys
import threading
import warnings
from contextlib import ExitStack, suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from isobatch.elastic.collectives import BACKEND, Cord, CuttableGroup, Mean, leave_to_eager
from isobatch.elastic.messages import Here, Note, Roster
from isobatch.elastic.rendezvous import Rendezvous
from isobatch.elastic.store import Store, inode, sockets
from isobatch.errors import first_line
from isobatch.training.world import set_timeout


class LeftOut(RuntimeError):
    """Raised in a process after the run went on without it, while it was paused or cut off."""


_MARKS = ("gloo", "NCCL", "ncclComm", "process group", "Process group", "ProcessGroup")


def is_loss(error: BaseException) -> bool:
    """Returns whether an error means a lost connection between ranks; gloo's are known by their texts."""
    if "CUDA error" in str(error):
        # This process's own GPU failed, even if torch's watchdog also mentions NCCL: it can run nothing more.
        return False
    return isinstance(error, (LeftOut, dist.DistError)) or (
        isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
    )


class CrewGroup:
    """The process group of one crew.

    gloo's own abort leaves a rank waiting in its collective, so `cut` shuts the group's sockets down; NCCL's
    abort works. Until the group is ready, its sockets are all that were opened since `begin`, including the
    rendezvous's connection to the store. From `ready` on they are those sockets, and connections accepted by
    their listeners. So a connection that the training opens, such as an upload, is left alone.

    Nothing waits in gloo itself: see `Cord`.
    """

    def __init__(self) -> None:
        self._before: set[str] | None = None
        self._own: set[str] | None = None
        self._wrapped: list[Any] = []
        self._means: list[Mean] = []
        self._cord = Cord()
        # torch's C++ holds it only without its methods in Python.
        self._rendezvous: Rendezvous | None = None

    def begin(self) -> None:
        """Notes the sockets open before the group."""
        self._before, self._own = {*sockets().values()}, None
        self._cord = CuttableGroup.cord = Cord()
        leave_to_eager()

    def keep(self, store: Store) -> None:
        """Keeps this rank's addresses in the store, for ranks still connecting."""
        if self._rendezvous is not None:
            self._rendezvous.keep(store)

    def hide_hint(self) -> None:
        """Leaves errors of the script's own collectives as they are."""
        self._cord.hint = ""

    def ready(self) -> None:
        """Notes the group's own sockets."""
        self._own = {*sockets().values()} - (self._before or set())
        self._cord.trains = True

    def form(
        self, store: Store, table: Roster, rank: int, *, cuda: bool, lease: float, timeout: float
    ) -> None:
        """Forms the group of all ranks on a list, and waits for them at most for the lease.

        Raises:
            RuntimeError: it could not be formed, whatever the reason: the list is lost, not the run.
        """
        _meet(store, table, rank, lease)
        try:
            self._connect(store, table, rank, cuda=cuda, lease=lease, timeout=timeout)
        except Exception as error:
            raise RuntimeError(f"gloo: the process group was not formed: {first_line(error)}") from error

    def _connect(
        self, store: Store, table: Roster, rank: int, *, cuda: bool, lease: float, timeout: float
    ) -> None:
        # torch names groups by a counter in each process, and a group that could not be formed still counts:
        # without a reset the ranks would not meet again.
        dist.distributed_c10d._world.group_count = 0
        hook = sys.excepthook  # torch wraps it once more for each group.
        self._rendezvous = Rendezvous(store, table.mark, lease, self._cord.check)
        CuttableGroup.devices = ("cpu", "cuda") if cuda else ("cpu",)
        if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") not in ("0", "2"):
            # With 3 (torch's default) or 1 (set by torchrun) torch's watchdog ends the remaining processes.
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
        os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
        # Connect now: connecting lazily, in a collective, would wait for a rank that has died since.
        os.environ["TORCH_GLOO_LAZY_INIT"] = "0"
        dist.init_process_group(
            BACKEND,
            store=self._rendezvous,
            rank=rank,
            world_size=len(table.seats),
            timeout=connecting(lease),
        )
        sys.excepthook = hook
        set_timeout(timedelta(seconds=timeout))

    def wrap(self, net: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Wraps a network in DDP, without its first broadcast: all ranks have the same state already."""
        if dist.get_world_size() == 1:
            return net
        model = DistributedDataParallel(net, init_sync=False, **options)
        if next(net.parameters()).device.type == "cpu":
            group: Any = dist.group.WORLD
            self._means.append(Mean(group.gloo, self._cord, group.size()))
            model.register_comm_hook(self._means[-1], Mean.of)
        self._wrapped.append(model)
        return model

    def meet(self) -> None:
        """Waits until all ranks are here, by a barrier: it sends less than an all_reduce of one number."""
        group: Any = dist.group.WORLD
        self._cord.wait(group.gloo.barrier())

    def cut(self) -> None:
        """Ends this rank's waiting in the group, from another thread."""
        self._cord.is_cut = True
        for group in _groups():
            with suppress(RuntimeError, AttributeError):
                group._get_backend(torch.device("cuda")).abort()
        if self._before is None:
            return
        opened = [number for number, name in sockets().items() if name not in self._before]
        ports: set[int] = set()
        with ExitStack() as stack:
            connected = []
            for number in opened:
                with suppress(OSError):
                    connection = stack.enter_context(socket.socket(fileno=os.dup(number)))
                    if connection.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        ports.add(connection.getsockname()[1])
                    else:
                        connected.append((connection, number))
            own = self._own
            for connection, number in connected:
                with suppress(OSError):
                    if own is None or inode(number) in own or connection.getsockname()[1] in ports:
                        connection.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Frees the group with its threads and sockets, even while the training holds the wrapped model."""
        self.cut()
        for model in self._wrapped:
            model._remove_autograd_hooks()
            for name in ("reducer", "logger", "process_group"):
                model.__dict__.pop(name, None)
        for mean in self._means:  # DDP holds it.
            vars(mean).clear()
        self._wrapped, self._means = [], []
        if dist.is_initialized():
            groups = _groups()
            with warnings.catch_warnings(), suppress(RuntimeError):
                warnings.simplefilter("ignore")
                dist.destroy_process_group()
            # The script ends with an error: no thread can be started any more, and none is needed.
            if sys.is_finalizing():
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(groups))
                return
            release = threading.Thread(target=groups.clear, name="isobatch release", daemon=True)
            release.start()
            release.join(1.0)


def _groups() -> list[Any]:
    return [group for group in [*dist.distributed_c10d._world.pg_map] if group is not None]


def connecting(lease: float) -> timedelta:
    """Returns the time-out to form a group with: gloo waits five times as long for a connection."""
    return timedelta(seconds=max(lease / 5, 2.0))


def _meet(store: Store, table: Roster, rank: int, lease: float) -> None:
    """Waits until all ranks of a crew are about to form its group, and so have the list with this digest."""
    ids, until = table.ids, monotonic() + lease
    own = Here(ids[rank])
    while not {message.id for message in store.messages(f"{table.mark}/here", Here, own)} >= {*ids}:
        if store.read(f"{table.mark}/over", Note) is not None or monotonic() > until:
            raise RuntimeError(f"not all {len(ids)} ranks came to form the process group")
        sleep(0.01)
