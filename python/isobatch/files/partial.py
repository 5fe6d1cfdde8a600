"""The hidden file that a large output is while it is not whole yet, beside where it belongs. Its writer locks it: what nobody holds is what
a killed process left."""

from __future__ import annotations

import fcntl
import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path


@contextmanager
def partial_of(path: str) -> Iterator[str]:
    """A new file for what is to become the one at the path, locked while the context lasts. What killed writers on this machine have left of
    the same output goes first.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with partial_of(f"{folder}/plans.csv") as partial:
    ...     os.path.exists(partial), Path(partial).name.startswith(".plans.csv.")
    (True, True)
    """
    place = Path(path)
    _clear(place)
    partial, handle = _locked(place)
    try:
        yield str(partial)
    finally:
        os.close(handle)


def _mark(place: Path) -> str:
    """How the names begin of those that are made on this machine: locks of another may not be seen here."""
    return f".{place.name}.{blake2b(platform.node().encode(), digest_size=4).hexdigest()}."


def _locked(place: Path) -> tuple[Path, int]:
    while True:
        partial = place.with_name(f"{_mark(place)}{uuid.uuid4().hex}")
        handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)  # another run has taken it for a leftover, and removes it
            continue
        except OSError:
            return partial, handle  # a network's filesystem without locks, where none is taken for a leftover
        if _is_at(handle, partial):
            return partial, handle
        os.close(handle)


def _clear(place: Path) -> None:
    """Removes those that nobody holds."""
    mark, left = _mark(place), []
    with suppress(OSError), os.scandir(place.parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(mark)]
    for path in left:
        if len(path) - path.rindex(".") != 33:
            continue
        # Not to be read or removed, or held: it stays.
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(handle, Path(path)):
                    Path(path).unlink()
            finally:
                os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False
