"""Hides differences of operating systems: folders by handle, locks, cores, processes with their children.

Linux and macOS have all of it. Windows has no `fcntl`, opens no folder, and ends processes one by one. An
extra's package that may be missing is a `LazyModule`.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError

if TYPE_CHECKING:
    import subprocess

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


class LazyModule:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def require_posix(task: str) -> None:
    """Refuses a task on Windows, before it begins."""
    if sys.platform == "win32":
        raise InputError(
            f"{task} needs Linux or macOS, this is Windows: run it where you train, or in WSL; plans, "
            "fleets, schedules and reports are made here too"
        )


def count_cores() -> int:
    """Returns the number of cores open to this process.

    >>> 1 <= count_cores() <= os.cpu_count()
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def slashed(path: str) -> str:
    """Returns a local path with slashes, as pyarrow gives it back: a backslash is a letter but on Windows."""
    return path.replace(os.sep, "/")


# ---- folders and files by their handles ----


def is_planted(path: Path, status: os.stat_result) -> bool:
    """Tells whether a file is another user's, in a folder where everybody may write.

    Never on Windows: its files have no owner in `stat`, and every folder the mode 0777.
    """
    if sys.platform == "win32":
        return False
    anybody_writes = path.parent.stat().st_mode & stat.S_IWOTH
    return bool(anybody_writes) and status.st_uid not in (0, os.geteuid())


def open_folder(path: Path, within: int | None = None) -> int | None:
    """Opens a folder; by its name inside the handle `within`, where a link is refused.

    None on Windows, where files are named by their whole paths.
    """
    if sys.platform == "win32":
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY
    return os.open(path, flags if within is None else flags | os.O_NOFOLLOW, dir_fd=within)


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until a file, or the names in a folder, are on the disk; Windows syncs no folder."""
    if sys.platform == "win32" and Path(path).is_dir():
        return
    # Windows syncs only what is open for writing; a file may be read-only elsewhere.
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_locked(path: Path) -> int | None:
    """Opens and locks a file; None if another run holds the lock, or there are no locks here.

    Windows has locks, but an open file is not moved to its place there.
    """
    if sys.platform == "win32" or fcntl is None:
        return None
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(handle)
        # The lock's last holder may have moved the file to its place.
        is_own = status.st_uid == os.geteuid() and status.st_nlink == 1  # another name may be a file of worth
        if is_own and os.path.samestat(status, os.lstat(path)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # no locks: nobody ever writes to a file of this name
        path.unlink(missing_ok=True)
    os.close(handle)
    return None


# ---- processes ----


def end_session(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ends a session's first process and all others in it, by force after `grace` seconds."""
    import subprocess

    if sys.platform == "win32":
        words = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        process.wait()
        return
    # torchrun ends its workers when it is asked to, not when it is killed.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
