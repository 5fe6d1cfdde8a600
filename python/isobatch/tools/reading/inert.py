"""The attributes that a pickle holds, without running what a pickle can run.

`training_args.bin`, which transformers' Trainer puts into every checkpoint, is a pickle: unpickled as usual it may call any
function. Here no name in it is ever looked up: each class and function becomes the same empty record, which keeps the
arguments and the attributes and does nothing else.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, unreadable

MAX_BYTES = 1 << 20
"""Of the pickle; a Trainer's has 6 kB."""


class Record:
    """What stands for an object of any class."""

    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    def __new__(cls, *arguments: Any, **_: Any) -> Record:
        record = super().__new__(cls)
        record.arguments, record.attributes = arguments, {}
        return record

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        self.attributes = {k: v for part in parts if isinstance(part, dict) for k, v in part.items()}

    def __call__(self, *arguments: Any, **_: Any) -> Record:
        return Record(*arguments)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass  # a dict's subclass is filled in this way

    def append(self, item: Any) -> None:
        """A list's subclass is filled in this way."""

    def extend(self, items: Any) -> None:
        """Likewise."""

    def __hash__(self) -> int:
        return id(self)


class _Inert(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ARG002 - no name is looked up
        return Record

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - a tensor's storage
        return None

    def get_extension(self, code: int) -> Any:  # noqa: ARG002
        return Record


def attributes(path: Path) -> dict[str, Any]:
    """The attributes of the object that torch saved in a file; enumerations are their values.

    Raises:
        InputError: the file is no such pickle, or is larger than any that the Trainer writes.
    """
    file = str(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                if archive.getinfo(name).file_size > MAX_BYTES:
                    raise InputError(f"holds a pickle of more than {MAX_BYTES:,} bytes", file=file)
                data = archive.read(name)
        else:
            with path.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"holds a pickle of more than {MAX_BYTES:,} bytes", file=file)
        found = _Inert(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # a broken pickle fails in any way that the interpreter has
        raise unreadable(error, file) from None
    values = found.attributes if isinstance(found, Record) else {}
    return {str(name): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """A record of one argument is an enumeration's member; one with attributes is those."""
    if not isinstance(value, Record):
        return value
    if value.attributes:
        return value.attributes
    return (
        value.arguments[0]
        if len(value.arguments) == 1 and isinstance(value.arguments[0], str | int)
        else None
    )
