"""Limits on the cost of a file in any format, and on names listed twice."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from isobatch.errors import InputError
from isobatch.words import few, shown

MAX_DEPTH_LEVELS = 50
MAX_TABLE_VALUES = 200_000
"""Counted as often as YAML's aliases repeat them: what a few hundred bytes stand for may be any number."""
MAX_COLUMNS = 10_000
"""Columns of a table, and names in a file of settings."""
MAX_KEY_CHARACTERS = 1_000
_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*"
_DOTTED = re.compile(rf"(?<![\w.-])(?:{_PART}){{{MAX_DEPTH_LEVELS}}}")
_LONG = re.compile(rf"^[^=\n\"']{{{MAX_KEY_CHARACTERS},}}=", re.MULTILINE)


def too_deep(file: str) -> InputError:
    """Returns the error of a file with lists and tables nested too deep."""
    return InputError(f"is nested deeper than {MAX_DEPTH_LEVELS} levels", file=file)


def too_large(file: str) -> InputError:
    """Returns the error of a file of too many values."""
    return InputError(f"holds more than {MAX_TABLE_VALUES:,} values", file=file)


def refuse_long_keys(text: str, file: str) -> None:
    """Refuses TOML with a key of too many parts or characters: its parser takes their square."""
    if _DOTTED.search(text):
        raise too_deep(file)
    if _LONG.search(text):
        raise _long_key(file)


def refuse_many_names(text: str, file: str, sign: str) -> None:
    """Refuses a text with more names than a file of settings has, each before a sign, unread."""
    if text.count(sign) > 2 * MAX_COLUMNS:
        raise _too_many_names(file)


def _too_many_names(file: str) -> InputError:
    return InputError(f"has more than {MAX_COLUMNS:,} names, the most that settings may have", file=file)


def _long_key(file: str) -> InputError:
    return InputError(f"has a name of more than {MAX_KEY_CHARACTERS:,} characters", file=file)


def refuse_large(data: Any, file: str) -> None:
    """Refuses data nested too deep or of too much, without walking an alias of YAML twice."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    names = 0

    def size(value: Any, depth: int, *, in_tables: bool) -> int:
        nonlocal names
        if not isinstance(value, dict | list | tuple):
            return 1
        if id(value) in sizes:
            return sizes[id(value)]
        if id(value) in open_ or depth > MAX_DEPTH_LEVELS:
            raise too_deep(file)
        open_.add(id(value))
        in_tables = in_tables and isinstance(value, dict)
        names += len(value) if in_tables else 0  # not those of a list's tables, as of a log
        if names > MAX_COLUMNS:
            raise _too_many_names(file)
        if isinstance(value, dict) and any(len(str(name)) > MAX_KEY_CHARACTERS for name in value):
            raise _long_key(file)
        inner = value.values() if isinstance(value, dict) else value
        total = 1 + sum(size(item, depth + 1, in_tables=in_tables) for item in inner)
        open_.discard(id(value))
        sizes[id(value)] = total
        return total

    if size(data, 0, in_tables=True) > MAX_TABLE_VALUES:
        raise too_large(file)


# Keys that are listed twice, of which readers keep the last in silence

_KEYS = re.compile(rb'"[ \t\r\n]*:')
"""Where a key ends, and maybe a quote inside of a text."""


class DoubledNameError(ValueError):
    """A name listed twice in a table."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{shown(name)} is listed twice")
        self.name = name


def refuse_duplicates(names: Iterable[str]) -> None:
    """Refuses a table with a name listed twice, by a ValueError."""
    listed: set[str] = set()
    for name in names:
        if name in listed:
            raise DoubledNameError(name)
        listed.add(name)


def refuse_columns(names: Collection[str], file: str | None) -> None:
    """Refuses the columns of a table where one is there twice, or there are too many."""
    if len(names) > MAX_COLUMNS:
        raise InputError(f"has {len(names):,} columns, more than the {MAX_COLUMNS:,} of a table", file=file)
    if doubled := sorted(name for name, times in Counter(iter(names)).items() if times > 1):
        subject, verb = ("the column", "is") if len(doubled) == 1 else ("the columns", "are")
        why = f"{subject} {few(map(shown, doubled))} {verb} in the header twice"
        raise InputError(why, file=file, field=doubled[0])


def refuse_duplicate_keys(line: bytes, values: Any) -> None:
    """Refuses JSON with a key twice in an object, decoded to `values` by a faster reader than Python's.

    Where the text has no more quotes before a colon than `values` has keys, no key can be lost: a second
    reading is needed only for lines with such colons in their texts, and for those to be refused.
    """
    if len(_KEYS.findall(line)) == _key_count(values):
        return
    try:
        # Numbers are not looked at: Python refuses those of thousands of digits.
        json.loads(line, object_pairs_hook=unique_pairs, parse_int=str, parse_float=str)
    except ValueError as error:
        raise InputError(str(error)) from None


def _key_count(value: Any) -> int:
    """Counts the keys of all objects in a value."""
    inner = value.values() if isinstance(value, dict) else value
    own = len(value) if isinstance(value, dict) else 0
    return own + sum(_key_count(each) for each in inner if isinstance(each, (dict, list)))


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a table of the pairs of JSON; a ValueError if a name is listed twice."""
    refuse_duplicates(name for name, _ in pairs)
    return dict(pairs)
