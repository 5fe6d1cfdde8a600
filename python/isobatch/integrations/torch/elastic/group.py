"""A crew's process group: formed anew under each list, cut where a rank is lost, and freed before the next."""

from __future__ import annotations

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
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from isobatch.integrations.torch.elastic.agreement import set_timeout
from isobatch.integrations.torch.elastic.store import Store, inode, sockets


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

    gloo's own abort leaves a rank in the collective that it waits in, so its sockets are shut down; NCCL has an abort that works. Until
    the group is ready these are all sockets that were opened since it was begun, with the rendezvous's own connection to the store;
    from then on those, and what a listener of theirs accepts. So a connection that the training opens, as for an upload, is left alone.

    gloo waits for a rank to connect in a condition that no socket ends, five times as long as the group's time-out. So ranks meet in the
    store first, and form with a time-out of a fifth of the lease.

    gloo also forgets the sends that are under way when a connection ends (`Pair::signalException` in gloo/transport/tcp/pair.cc passes
    over the unbound buffers of `tx_`), so that who waits for one waits for the group's whole time-out: a rank that was paused while the
    others cut it off, above all. So no rank waits in gloo itself. What DDP and `wait` wait for ends when the group is cut, and a thread
    of its own lets the group go.
    """

    def __init__(self) -> None:
        self._before: set[str] | None = None
        self._own: set[str] | None = None
        self._wrapped: list[Any] = []
        self._is_cut = False
        self._answers: list[Future[Any]] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Notes what is there before the group."""
        self._before, self._own = {*sockets().values()}, None
        self._is_cut = False

    def ready(self) -> None:
        """Notes which sockets are the group's."""
        self._own = {*sockets().values()} - (self._before or set())

    def form(
        self, store: Store, number: int, rank: int, size: int, *, cuda: bool, lease: float, timeout: float
    ) -> None:
        """Forms the group; a rank that does not come is waited for no longer than the lease.

        Raises:
            RuntimeError: a rank did not come.
        """
        _meet(store, number, size, lease)
        # torch names groups by a count in each process, and one that could not be formed leaves it: ranks would not meet again.
        dist.distributed_c10d._world.group_count = 0
        hook = sys.excepthook  # torch wraps it once more for each group.
        prefix = dist.distributed_c10d.PrefixStore(f"{number}/group", store.another().raw)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=prefix,
            rank=rank,
            world_size=size,
            timeout=connecting(lease),
        )
        sys.excepthook = hook
        set_timeout(timedelta(seconds=timeout))

    def wrap(self, net: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Wraps a network in DDP; the state of all is the same already."""
        if dist.get_world_size() == 1:
            return net
        model = DistributedDataParallel(net, init_sync=False, **options)
        if next(net.parameters()).device.type == "cpu":
            model.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
        self._wrapped.append(model)
        return model

    def _reduce(self, bucket: Any) -> Future[torch.Tensor]:
        """Takes the mean of a bucket's gradients, as DDP does; the future ends in an error when the group is cut."""
        buffer = bucket.buffer().div_(dist.get_world_size())
        reduced = dist.distributed_c10d._get_default_group().allreduce([buffer]).get_future()
        answer: Future[Any] = Future()
        with self._lock:
            self._answers = [other for other in self._answers if not other.done()]
            self._answers.append(answer)
        reduced.add_done_callback(lambda done: self._answer(answer, done))
        if self._is_cut:
            self._answer(answer, None)
        return answer.then(_first)

    def _answer(self, answer: Future[Any], reduced: Future[Any] | None) -> None:
        with self._lock:
            if not answer.done():
                answer.set_result(reduced)

    def wait(self, work: Any) -> None:
        """Waits for a collective, or until the group is cut.

        Raises:
            RuntimeError: it failed, or was cut.
        """
        while not work.is_completed():
            if self._is_cut:
                raise RuntimeError(_CUT)
            with suppress(RuntimeError):  # torch's, that it is not complete yet; what failed is complete.
                work.wait(timedelta(seconds=0.2))
        work.wait()

    def cut(self) -> None:
        """Ends what this rank waits for in the group, from another thread."""
        self._is_cut = True
        for answer in [*self._answers]:
            self._answer(answer, None)
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
                    one = stack.enter_context(socket.socket(fileno=os.dup(number)))
                    if one.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        ports.add(one.getsockname()[1])
                    else:
                        connected.append((one, number))
            own = self._own
            for one, number in connected:
                with suppress(OSError):
                    if own is None or inode(number) in own or one.getsockname()[1] in ports:
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
            groups = _groups()
            with warnings.catch_warnings(), suppress(RuntimeError):
                warnings.simplefilter("ignore")
                dist.destroy_process_group()
            release = threading.Thread(target=groups.clear, name="isobatch release", daemon=True)
            release.start()
            release.join(1.0)


_CUT = "gloo: the group was cut, as a rank of the crew was lost"


def _first(answer: Future[Any]) -> torch.Tensor:
    """Returns the tensor that was reduced."""
    reduced = answer.value()
    if reduced is None:
        raise RuntimeError(_CUT)
    tensor: torch.Tensor = reduced.value()[0]
    return tensor


def _groups() -> list[Any]:
    return [group for group in [*dist.distributed_c10d._world.pg_map] if group is not None]


def connecting(lease: float) -> timedelta:
    """Returns the time-out to form a group with: gloo waits five times as long for a connection."""
    return timedelta(seconds=max(lease / 5, 2.0))


def _meet(store: Store, number: int, size: int, lease: float) -> None:
    """Waits until all ranks of a crew are about to form its group."""
    store.number(f"{number}/here")
    until = monotonic() + lease
    while int(store.get(f"{number}/here") or 0) < size:
        if store.has(f"{number}/over") or monotonic() > until:
            raise RuntimeError(f"not all {size} ranks came to form the process group")
        sleep(0.01)
