"""How the ranks of one host start: whether they may be forked, and a store on the loopback where they meet.

CUDA does not work in a fork of a process that has so much as asked it whether it is there, which torch's launcher does (torch 2.9 and
later); `torch.cuda.is_initialized()` does not see that. Asked by way of NVML, it stays unspoiled. And torch's own rendezvous listens on
all interfaces, where anybody who reaches the port can write into it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

_SWITCH = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextmanager
def asking_nvml() -> Iterator[None]:
    """Keeps torch.cuda.is_available() from touching CUDA."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def has_gpus() -> bool:
    """Tells whether this host has a GPU, asked so that ranks can still be forked."""
    with asking_nvml():
        return torch.cuda.is_available()


def is_cuda_used() -> bool:
    """Tells whether CUDA would refuse to work in a fork of this process: a fork is asked."""
    if not hasattr(torch._C, "_cuda_isInBadFork"):
        return False  # this torch has no CUDA
    child = os.fork()
    if child == 0:
        os._exit(int(torch._C._cuda_isInBadFork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


NAME = "isobatch-loopback"
HOST = "127.0.0.1"
SECONDS = 60

# The newer of torch's two stores takes no socket that listens already in torch 2.6 ("does not support initialization with an listen fd"), and
# does in 2.11. The older one serves the ranks of a host as well, by the same protocol.
_TAKES_SOCKETS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)


class Loopback(RendezvousHandler):
    """The rendezvous of one agent, whose workers use its store."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store: Store | None = None
        self._port = 0

    def get_backend(self) -> str:
        """Returns the registered name."""
        return NAME

    @property
    def use_agent_store(self) -> bool:
        """Tells workers to connect to the agent's store instead of making one."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns the store, and where workers find it."""
        if self._store is None:
            listening = socket.create_server((HOST, 0))
            self._port = listening.getsockname()[1]
            self._store = TCPStore(
                HOST,
                self._port,
                is_master=True,
                timeout=timedelta(seconds=SECONDS),
                wait_for_workers=False,
                multi_tenant=True,
                master_listen_fd=listening.detach(),  # the store closes it
                use_libuv=_TAKES_SOCKETS,
            )
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(HOST, self._port))

    def is_closed(self) -> bool:
        """Returns False: one agent has nobody to close it for."""
        return False

    def set_closed(self) -> None:
        """Does nothing."""

    def num_nodes_waiting(self) -> int:
        """Returns 0: nobody else comes."""
        return 0

    def get_run_id(self) -> str:
        """Returns this launch's id."""
        return self._run_id

    def shutdown(self) -> bool:
        """Does nothing."""
        return True


def _make(parameters: RendezvousParameters) -> RendezvousHandler:
    return Loopback(parameters.run_id)


def register() -> str:
    """Makes it known to torch's launcher; gives its name."""
    rendezvous_handler_registry.register(NAME, _make)
    return NAME
