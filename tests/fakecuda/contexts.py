"""Which processes are on which made-up GPU, and how much memory each has: a file each, named GPU.PROCESS. No torch."""

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


def write(gpu, count):
    """Says what this process has taken of a GPU, beside its context."""
    (_folder() / f"{gpu}.{os.getpid()}").write_text(str(count))


def read(gpu):
    """Returns the bytes of each process on a GPU that still lives, with its context."""
    found = {}
    for file in _folder().glob(f"{gpu}.*"):
        process = int(file.suffix[1:])
        if Path(f"/proc/{process}").exists():
            with contextlib.suppress(OSError):
                found[process] = CONTEXT_BYTES + int(file.read_text() or 0)
    return found
