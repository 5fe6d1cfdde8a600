"""Files, read whole and written whole or not at all, even where the process is killed or the power fails."""

from __future__ import annotations

import codecs
import io
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from isobatch.errors import InputError, unreadable, unwritable
from isobatch.system import open_folder, open_locked, sync

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


MAX_FILE_BYTES = 1 << 24
"""Bytes of a file that is read whole: those that people write, and what isobatch writes of one plan."""


def read_bytes(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> bytes:
    """Reads a file of at most `most` bytes; of a larger one no more than one byte beyond."""
    try:
        if Path(path).is_fifo() and Path(path).resolve().exists():  # no bash's <(command)
            raise ValueError("it is a named pipe: give a file")
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise unreadable(error, os.fspath(path)) from None
    if len(data) > most:
        why = f"has more than the {most:,} bytes that such a file may have"
        raise InputError(why, file=os.fspath(path))
    return data


def read_whole(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> str:
    """Reads the text in a file of at most `most` bytes: UTF-8, or UTF-16 as PowerShell's `>` writes it."""
    data = read_bytes(path, most)
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding=encoding).read()
    except UnicodeDecodeError as error:
        raise unreadable(error, os.fspath(path)) from None


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file whole or not at all, and returns when it is on the disk."""
    path = Path(path)
    _write_below(path.parent, {Path(path.name): data}, [])


_NOT_JSON = (
    ".html", ".htm", ".csv", ".tsv", ".parquet", ".jsonl", ".toml", ".yaml", ".yml", ".md", ".txt", ".svg",
    ".png", ".py", ".sh",
)  # fmt: skip


def check_json(path: str | os.PathLike[str]) -> None:
    """Refuses the ending of another format, before JSON is written to it."""
    suffix = Path(path).suffix.lower()
    if suffix in _NOT_JSON:
        raise InputError(f"is written as JSON: name it .json, not {suffix}", file=os.fspath(path))


def save_json(path: str | os.PathLike[str], text: bytes | str) -> None:
    """Writes a file of JSON, whole or not at all."""
    check_json(path)
    write_whole(path, (text if isinstance(text, bytes) else text.encode()) + b"\n")


def write_folder(top: Path, files: Mapping[Path, bytes]) -> None:
    """Writes files at their paths below a folder, all or none; no link below `top` is followed."""
    fresh = [folder for folder in (top, *top.parents) if not folder.exists()]
    try:
        top.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, str(top)) from None
    _write_below(top, files, fresh)


def _write_below(top: Path, files: Mapping[Path, bytes], fresh: list[Path]) -> None:
    """Writes files under other names, then renames them all; a failure removes the folders in `fresh`."""
    waiting: dict[Path, str] = {}
    path = top
    try:
        for name, data in files.items():
            path = top / name
            refuse_special(path)
            with _entered(top, name.parent, fresh) as (handle, folder):
                waiting[name] = f".{name.name}.{unique()}"
                _write_new(folder / waiting[name], data, folder / name.name, handle)
        for name in files:
            path = top / name
            with _entered(top, name.parent, fresh) as (handle, folder):
                os.replace(folder / waiting[name], folder / name.name, src_dir_fd=handle, dst_dir_fd=handle)
                del waiting[name]
                if handle is not None:
                    os.fsync(handle)
    except BaseException as error:
        for name, partial in waiting.items():
            with suppress(OSError):
                (top / name).with_name(partial).unlink()
        for folder_path in sorted(fresh, reverse=True):
            with suppress(OSError):
                folder_path.rmdir()
        if isinstance(error, OSError):
            raise unwritable(error, str(path)) from None
        raise


@contextmanager
def _entered(top: Path, below: Path, fresh: list[Path]) -> Iterator[tuple[int | None, Path]]:
    """Opens the folder at a path below `top`, making missing ones; no part of the path may be a link.

    Yields:
        The folder's handle, and its path from there; without handles, None and its whole path.
    """
    handle = open_folder(top)
    try:
        path = top
        for part in below.parts:
            path /= part
            with suppress(FileExistsError):
                os.mkdir(path if handle is None else part, dir_fd=handle)
                fresh.append(path)
            refuse_special(path)
            if handle is not None:
                outer, handle = handle, open_folder(Path(part), within=handle)
                os.close(outer)
        yield handle, path if handle is None else Path()
    finally:
        if handle is not None:
            os.close(handle)


def _write_new(partial: Path, data: bytes, path: Path, folder: int | None) -> None:
    """Writes a new file in a folder, with the mode of the file to replace."""

    def open_new(path: str, flags: int) -> int:
        return os.open(path, flags, 0o666, dir_fd=folder)

    with open(partial, "xb", opener=open_new) as file:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuses a device, a pipe or a link: a file would take its place."""
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
    """Moves a whole file to its place, with the mode of the file it replaces; its folder is synced later."""
    with suppress(FileNotFoundError):
        Path(partial).chmod(stat.S_IMODE(Path(path).stat().st_mode))
    sync(partial)
    Path(partial).replace(path)


def check_place(path: str | os.PathLike[str]) -> None:
    """Checks for a place to write to, before the work begins."""
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
    """Gives a hidden path beside a path; its file is moved to the path as the block ends, or deleted."""
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
    """Gives a hidden file beside a path, to be written and moved there, and locks it while the context lasts.

    What a killed writer on this machine has left of the same output is locked by nobody, and is written over;
    without locks, as on Windows, it stays.
    """
    import socket

    # By host: locks of another may not be seen here.
    host = zlib.crc32(socket.gethostname().encode())
    partial = Path(path).with_name(f".{Path(path).name}.{host:08x}")
    handle = open_locked(partial)
    try:
        yield str(partial) if handle is not None else f"{partial}.{unique()}"
    finally:
        if handle is not None:
            os.close(handle)
