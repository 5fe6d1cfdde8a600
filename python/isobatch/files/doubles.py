"""Names that are listed twice, of which readers keep the last in silence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from isobatch.errors import InputError
from isobatch.words import shown


def refuse_doubles(names: Iterable[str]) -> None:
    """Refuses a table in which a name is listed twice.

    Raises:
        ValueError: naming the first.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{shown(name)} is listed twice")
        seen.add(name)


def refuse_double_keys(line: bytes, found: Any) -> None:
    """Refuses JSON in which an object has a key twice; a reader of JSON has made `found` of it.

    Where the text has no more colons than `found` has keys, no key can be lost: a second look is needed only for lines with colons in
    their texts, and for those to be refused.

    Raises:
        InputError: naming the key.

    >>> refuse_double_keys(b'{"lr": 1, "note": "a: b"}', {"lr": 1, "note": "a: b"})
    >>> refuse_double_keys(b'{"lr": 1, "lr": 2}', {"lr": 2})
    Traceback (most recent call last):
    isobatch.errors.InputError: 'lr' is listed twice
    """
    colons = line.count(b":")
    if colons == len(found) or colons == _keys(found):
        return
    try:
        # Numbers are not looked at: Python refuses those of thousands of digits.
        json.loads(line, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except ValueError as error:
        raise InputError(str(error)) from None


def _keys(value: Any) -> int:
    """Keys of all objects in a value."""
    inner = value.values() if isinstance(value, dict) else value
    own = len(value) if isinstance(value, dict) else 0
    return own + sum(_keys(each) for each in inner if isinstance(each, (dict, list)))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_doubles(name for name, _ in pairs)
    return dict(pairs)


class OnceDecoder:
    """A decoder of JSON objects that refuses a key that an object has twice."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode

    def decode(self, line: bytes) -> dict[str, Any]:
        """The object of a line.

        Raises:
            InputError: it has a key twice.
            msgspec.MsgspecError: it is no JSON object.
        """
        found = self._decode(line)
        if line.count(b":") != len(found):
            refuse_double_keys(line, found)
        return found
