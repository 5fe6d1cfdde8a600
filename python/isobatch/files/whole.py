"""Files, read whole and written whole or not at all, even where the process is killed or the power fails."""

from __future__ import annotations

import fcntl
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from isobatch.errors import InputError, unreadable, unwritable

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def read_whole(path: str | os.PathLike[str], most: int = -1) -> str:
    """Reads the text in a file; of one with more than `most` bytes, where that is not negative, no more than one byte beyond.

    Raises:
        InputError: it cannot be read, is no UTF-8, or is larger; the message names it.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1 if most >= 0 else -1)
        if 0 <= most < len(data):
            why = f"has more than the {most:,} bytes that such a file may have"
            raise InputError(why, file=os.fspath(path))
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(error, os.fspath(path)) from None


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file whole or not at all, and returns when it is on the disk.

    Raises:
        InputError: it cannot be written; the message names it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "a.txt", b"whole")
    >>> [(file.name, file.read_text()) for file in folder.iterdir()]
    [('a.txt', 'whole')]
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{unique()}")
    try:
        refuse_special(path)
        partial.write_bytes(data)
        settle(partial, path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise unwritable(error, str(path)) from None
        raise


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuses a device, a pipe or a link: a file would take its place.

    Raises:
        InputError: there is one at the path.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        todo = f"give the path it leads to, {os.path.realpath(path)}"
        raise InputError(f"is a symbolic link: {todo}", file=os.fspath(path))
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError("is no regular file: leave -o out to write to stdout", file=os.fspath(path))


def settle(partial: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Moves a whole file to its place, with the mode of the file there before; it survives a power cut from here on, once its
    folder is synced too."""
    with suppress(FileNotFoundError):
        Path(partial).chmod(stat.S_IMODE(Path(path).stat().st_mode))
    sync(partial)
    Path(partial).replace(path)


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_place(path: str | os.PathLike[str]) -> None:
    """Checks for a place to write to, before the work begins.

    Raises:
        InputError: there is no such folder, or it cannot be written.
    """
    refuse_special(path)
    folder = Path(path).parent
    if not folder.is_dir():
        raise InputError("there is no such folder", file=str(folder))
    if Path(path).is_dir():
        raise InputError("cannot be written: it is a folder", file=str(path))
    if not os.access(folder, os.W_OK):
        # Only the system knows why: a disk that is read-only, or no permission.
        probe = folder / f".{unique()}"
        try:
            probe.touch(exist_ok=False)
        except OSError as error:
            raise unwritable(error, str(path)) from None
        probe.unlink()


def unique() -> str:
    """Returns a new name, unlike those of all other processes."""
    return os.urandom(16).hex()


@contextmanager
def unfinished(fs: FileSystem, path: str) -> Iterator[str]:
    """Gives a hidden place beside a path, whose file is moved to the path when the block ends, and on a disk by then; deletes it where
    the block fails.

    Raises:
        InputError: the path is a device, a pipe or a link.
    """
    with ExitStack() as lock:
        if fs.type_name == "local":
            refuse_special(path)
            partial = lock.enter_context(partial_of(path))
        else:
            folder, _, name = path.rpartition("/")
            partial = f"{folder}/.{name}.{unique()}"
        try:
            yield partial
            if fs.type_name == "local":
                settle(partial, path)
                sync(path.rpartition("/")[0] or ".")
            else:
                fs.move(partial, path)
        except BaseException:
            with suppress(OSError):
                fs.delete_file(partial)
            raise


@contextmanager
def partial_of(path: str) -> Iterator[str]:
    """Gives a hidden file beside a path, to be written and moved there, and locks it while the context lasts. What a killed writer on this
    machine has left of the same output is nobody's lock, and is written over.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with partial_of(f"{folder}/plans.csv") as partial:
    ...     os.path.exists(partial), Path(partial).name.startswith(".plans.csv.")
    (True, True)
    """
    # By host: locks of another may not be seen here.
    host = zlib.crc32(os.uname().nodename.encode())
    partial = Path(path).with_name(f".{Path(path).name}.{host:08x}")
    handle = _locked(partial)
    try:
        yield str(partial) if handle is not None else f"{partial}.{unique()}"
    finally:
        if handle is not None:
            os.close(handle)


def _locked(path: Path) -> int | None:
    """Opens and locks a file; None where it is not ours alone: another run is writing it, or the filesystem has no locks."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.fstat(handle)
        # Who held the lock may have moved the file to its place.
        if os.path.samestat(there, os.lstat(path)) and there.st_uid == os.geteuid():
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # no locks: nobody ever writes to a file of this name
        path.unlink(missing_ok=True)
    os.close(handle)
    return None
