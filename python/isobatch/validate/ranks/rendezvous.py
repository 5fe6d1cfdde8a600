"""How the ranks of one host start: whether they may be forked, and a store on the loopback to meet in.

CUDA does not work in a fork of a process that has asked it whether it is there, as torch's launcher does
(torch 2.9 and later); `torch.cuda.is_initialized()` does not see that. Asked by way of NVML, CUDA stays
untouched. And torch's own rendezvous listens on all interfaces: anybody who reaches the port can write into
it.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

_SWITCH = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextmanager
def asking_nvml() -> Iterator[None]:
    """Keeps torch.cuda.is_available() from touching CUDA."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        del os.environ[_SWITCH]
        if before is not None:
            os.environ[_SWITCH] = before


def has_gpus() -> bool:
    """Tells whether this host has a GPU, without a CUDA context: ranks can still be forked."""
    with asking_nvml():
        return torch.cuda.is_available()


def is_cuda_used() -> bool:
    """Tells whether CUDA would refuse to work in a fork of this process, by asking in a fork."""
    if sys.platform == "win32" or not hasattr(torch._C, "_cuda_isInBadFork"):
        return False  # no forks, or a torch without CUDA
    child = os.fork()
    if child == 0:
        os._exit(int(torch._C._cuda_isInBadFork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


NAME = "isobatch-loopback"
HOST = "127.0.0.1"
SECONDS = 60

# The newer of torch's two stores takes no listening socket in torch 2.6 ("does not support
# initialization with an listen fd"), and does in 2.11. The older one serves the ranks of a host as well, by
# the same protocol.
_TAKES_SOCKETS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)


class Loopback(StaticTCPRendezvous):
    """The rendezvous of one agent with its own store, on a socket of the loopback."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        listening = socket.create_server((HOST, 0))
        port = listening.getsockname()[1]
        super().__init__(HOST, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=SECONDS)
        self._store = TCPStore(
            HOST,
            port,
            is_master=True,
            timeout=self.timeout,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening.detach(),  # the store closes it
            use_libuv=_TAKES_SOCKETS,
        )

    def get_backend(self) -> str:
        """Returns the registered name."""
        return NAME


def register() -> str:
    """Registers the rendezvous with torch's launcher, and returns its name."""
    rendezvous_handler_registry.register(NAME, Loopback)  # the same each time, or it refuses
    return NAME
