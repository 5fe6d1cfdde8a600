"""Pickles as data: no name in one is looked up, and what it may cost is bounded by its bytes.

Each class and function becomes the same empty record, which keeps the arguments and the attributes and does
nothing else. Python's own unpickler would hash a tuple of 2^60 tuples for a key, or make a memo of gigabytes
for an index.
"""

import io
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isobatch.errors import unreadable
from isobatch.files.limits import MAX_TABLE_VALUES, refuse_large
from isobatch.files.whole import read_bytes

MAX_ARCHIVE_BYTES = 1 << 22
"""Of the file around the pickle; a Trainer's has 6 kB."""
MAX_PICKLE_BYTES = 1 << 20


class InertObject:
    """Stands for a class or an object of one, with its arguments and attributes."""

    def __init__(self, arguments: Any = ()) -> None:
        self.arguments, self.attributes = arguments, dict[str, Any]()

    def __repr__(self) -> str:
        return "<an object>"


def attributes(path: Path) -> dict[str, Any]:
    """Reads the attributes of an object saved by torch or pickle; enumerations are their values."""
    file = str(path)
    data = read_bytes(path, MAX_ARCHIVE_BYTES)
    try:
        value = _Machine(_pickle_in(data)).run()
    except Exception as error:  # a broken archive or pickle fails in any way that the interpreter has
        raise unreadable(error, file) from None
    values = value.attributes if isinstance(value, InertObject) else {}
    plain = {name: _plain(each) for name, each in values.items()}
    refuse_large(plain, file)
    return plain


def _pickle_in(data: bytes) -> bytes:
    """Returns the pickle in a file of torch's, or the file's own bytes."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            name = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
            if name is None:
                raise ValueError("the archive has no data.pkl")
            entry = archive.getinfo(name)
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise ValueError("its data.pkl is compressed, and torch stores it uncompressed")
            if entry.file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"holds a pickle of more than {MAX_PICKLE_BYTES:,} bytes")
            data = archive.read(entry)
    if len(data) > MAX_PICKLE_BYTES:
        raise ValueError(f"holds a pickle of more than {MAX_PICKLE_BYTES:,} bytes")
    return data


def _plain(value: Any) -> Any:
    """Returns a record as a plain value: an enumeration's member by its argument, else its attributes."""
    if not isinstance(value, InertObject):
        return value
    if value.attributes:
        return value.attributes
    arguments = value.arguments
    if isinstance(arguments, list | tuple) and len(arguments) == 2 and arguments[0] is _CLASS:
        # Early releases of Python 3.11 pickle a member by its name, which is the value in capitals.
        return arguments[1].lower() if isinstance(arguments[1], str) else None
    only = arguments[0] if isinstance(arguments, list | tuple) and len(arguments) == 1 else None
    return only if isinstance(only, str | int) else None


_MARK = object()
_CLASS = InertObject()
_LITERALS = {
    operation.name
    for operation in pickletools.opcodes
    if operation.arg
    and not operation.stack_before
    and [*operation.stack_after] not in ([], [pickletools.anyobject])
}
"""Operations that put their argument on the stack."""
_VALUES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_LITERALS, lambda argument: argument),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_SET": lambda _: [],
    **dict.fromkeys(("GLOBAL", "EXT1", "EXT2", "EXT4"), lambda _: _CLASS),
    "PERSID": lambda _: None,  # a tensor's storage
}
"""Operations that put a value on the stack."""
_TUPLES = ("TUPLE1", "TUPLE2", "TUPLE3")
_IDLE = ("PROTO", "FRAME", "READONLY_BUFFER")


class _Machine:
    """Runs the operations of a pickle on a stack, each in time proportional to its own bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self) -> Any:
        """Returns the value of the pickle; raises an error of values or types for no pickle."""
        for operation, argument, _ in pickletools.genops(self.data):
            name = operation.name
            if name == "STOP":
                return self.pop()
            if name in _VALUES:
                self.stack.append(_VALUES[name](argument))
            elif name in _TUPLES:
                self._tuple_of(_TUPLES.index(name) + 1)
            elif name not in _IDLE:
                step = getattr(self, f"_{name.lower()}", None)
                if step is None:
                    raise ValueError(f"{name} is not read")
                step(argument)
        raise ValueError("the pickle does not end")

    def pop(self) -> Any:
        """Takes the top of the stack; raises ValueError for a mark, IndexError for none."""
        if (value := self.stack.pop()) is _MARK:
            raise ValueError("a mark is no value")
        return value

    def _marked(self) -> list[Any]:
        """Takes all above the last mark, and the mark."""
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _pop(self, _: Any) -> None:
        self.stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._marked()

    def _dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def _put(self, index: int) -> None:
        if not 0 <= index < 1 << 32:  # larger ones may all have one hash
            raise ValueError(f"{index:,} is no place of a memo")
        self.memo[index] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    _binget = _long_binget = _get

    def _binpersid(self, _: Any) -> None:
        self.stack[-1] = None

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._marked()))

    _frozenset = _tuple

    def _tuple_of(self, size: int) -> None:
        if len(self.stack) < size:
            raise IndexError("a tuple of more than the stack has")
        self.stack[-size:] = [tuple(self.stack[-size:])]

    def _list(self, _: Any) -> None:
        self.stack.append(self._marked())

    def _append(self, _: Any) -> None:
        self._extend([self.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._marked())

    _additems = _appends

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)

    def _dict(self, _: Any) -> None:
        pairs = self._marked()
        self.stack.append({})
        self._fill(pairs)

    def _setitem(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self._fill([key, value])

    def _setitems(self, _: Any) -> None:
        self._fill(self._marked())

    def _fill(self, pairs: list[Any]) -> None:
        """Fills a table, allowing texts as keys alone: settings have no others."""
        if isinstance(self.stack[-1], dict):
            self.stack[-1].update(
                (key, value)
                for key, value in zip(pairs[::2], pairs[1::2], strict=True)
                if isinstance(key, str)
            )

    def _stack_global(self, _: Any) -> None:
        self.stack[-2:] = [_CLASS]

    def _inst(self, _: Any) -> None:
        self.stack.append(InertObject(self._marked()))

    def _obj(self, _: Any) -> None:
        self.stack.append(InertObject(self._marked()[1:]))

    def _reduce(self, _: Any) -> None:
        arguments = self.pop()
        self.pop()
        self.stack.append(InertObject(arguments))  # not a copy: many may share a large one

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        self.pop()
        self._reduce(_)

    def _build(self, _: Any) -> None:
        state = self.pop()
        if isinstance(self.stack[-1], InertObject) and self.stack[-1] is not _CLASS:
            for part in state if isinstance(state, tuple) else (state,):
                if isinstance(part, dict):
                    self.copied += len(part)
                    if self.copied > MAX_TABLE_VALUES:
                        raise ValueError(f"sets more than {MAX_TABLE_VALUES:,} attributes")
                    self.stack[-1].attributes.update(part)
