"""Files that are read whole, and appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from isobatch.errors import InputError


def read_whole(path: str | os.PathLike[str]) -> str:
    """The text in a file.

    Raises:
        InputError: it cannot be read, or is no UTF-8; the message names it.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=os.fspath(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"cannot be read: {error}", file=os.fspath(path)) from None


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file that appears whole or not at all.

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
        partial.write_bytes(data)
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None
        raise


def check_place(path: str | os.PathLike[str]) -> None:
    """Whether a file could be written there, before the work that it shall hold.

    Raises:
        InputError: there is no such folder, or it cannot be written.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise InputError("there is no such folder", file=str(folder))
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise InputError("cannot be written", file=str(path))
