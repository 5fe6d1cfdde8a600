"""Files that are read whole, and appear whole or not at all."""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from isobatch.errors import InputError, unreadable, unwritable


def read_whole(path: str | os.PathLike[str]) -> str:
    """The text in a file.

    Raises:
        InputError: it cannot be read, or is no UTF-8; the message names it.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(error, os.fspath(path)) from None


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file that appears whole or not at all, and is on the disk when this returns.

    Raises:
        InputError: it cannot be written; the message names it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "a.txt", b"whole")
    >>> [(file.name, file.read_text()) for file in folder.iterdir()]
    [('a.txt', 'whole')]
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
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
    """A device, a pipe or a link would be replaced by a file, not written to.

    Raises:
        InputError: there is one at the path.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        raise InputError(
            f"is a symbolic link: give the path it leads to, {os.path.realpath(path)}", file=os.fspath(path)
        )
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError("is no regular file: leave -o out to write to stdout", file=os.fspath(path))


def settle(partial: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Moves a file that is whole to its place, with the mode of the file that it replaces; it survives a power cut from here on,
    once its folder is synced too."""
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


def sync_up(path: str | os.PathLike[str], top: str | os.PathLike[str]) -> None:
    """As `sync` of a folder, and of those that it is in up to `top`: a new folder is lost with what is in it, as long as the one
    above does not have its name on the disk."""
    for folder in (Path(path), *Path(path).parents):
        sync(folder)
        if folder == Path(top):
            return


def check_place(path: str | os.PathLike[str]) -> None:
    """Checks that a file can be written there, before the work whose result it is to hold.

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
        probe = folder / f".{uuid.uuid4().hex}"
        try:
            probe.touch(exist_ok=False)
        except OSError as error:
            raise unwritable(error, str(path)) from None
        probe.unlink()
