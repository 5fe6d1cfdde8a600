"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from isobatch.errors import InputError


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
