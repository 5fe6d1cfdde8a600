"""The processes on simulated GPUs and their memory: a file each, named GPU.PROCESS. No torch."""

import contextlib
import os
from pathlib import Path

MIB = 1 << 20
DRIVER_BYTES, CONTEXT_BYTES = 600 * MIB, 500 * MIB


def _folder():
    return Path(os.environ["FAKE_GPU_CONTEXTS"])


def total_bytes():
    """Returns the memory of each GPU."""
    return int(os.environ["FAKE_GPU_BYTES"])


def _begun(process):
    """Returns the start of a process by the system's clock: its number alone may be another's by now."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]


def write(gpu, count):
    """Writes the bytes of this process on a GPU, beside its context."""
    (_folder() / f"{gpu}.{os.getpid()}").write_text(f"{count} {_begun(os.getpid())}")


def read(gpu):
    """Returns the bytes of each living process on a GPU, with its context."""
    bytes_of = {}
    for file in _folder().glob(f"{gpu}.*"):
        process = int(file.suffix[1:])
        with contextlib.suppress(OSError):
            count, begun = (file.read_text() or f"0 {_begun(process)}").split()
            if begun == _begun(process):
                bytes_of[process] = CONTEXT_BYTES + int(count)
    return bytes_of
