"""Whether ranks may be forked. CUDA does not work in a fork of a process that has so much as asked it whether it is there, which
torch's launcher does (torch 2.9 and later); `torch.cuda.is_initialized()` does not see that. Asked by way of NVML, it stays unspoiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SWITCH = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextmanager
def asking_nvml() -> Iterator[None]:
    """torch.cuda.is_available() then does not touch CUDA."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def gpus() -> bool:
    """Whether this host has a GPU, asked so that ranks can still be forked."""
    with asking_nvml():
        return torch.cuda.is_available()


def spoiled() -> bool:
    """Whether CUDA would refuse to work in a fork of this process: a fork is asked."""
    if not hasattr(torch._C, "_cuda_isInBadFork"):
        return False  # this torch has no CUDA
    child = os.fork()
    if child == 0:
        os._exit(int(torch._C._cuda_isInBadFork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
