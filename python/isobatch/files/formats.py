"""JSON, YAML and TOML, read with no key twice and within one limit of size and depth."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, must_be, needs_extra, unreadable
from isobatch.files.whole import read_whole
from isobatch.words import few, shown

MAX_TABLE_BYTES = 4 << 20
MAX_DEPTH_LEVELS = 50
MAX_TABLE_VALUES = 200_000
"""Counted as often as YAML's aliases repeat them: what a few hundred bytes stand for may be any number."""
MAX_COLUMNS = 10_000

NO_FORMAT = "cannot tell the format: use .toml, .yaml or .json"
_ELSEWHERE = {
    **dict.fromkeys((".sh", ".py", ".slurm", ".sbatch"), "; a script is read by --from (ib.Recipe.read)"),
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".jsonl"), "; a table of jobs is planned by isobatch fleet"),
}
"""What people give for a recipe, and what takes it."""


def read_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the table in a .toml, .yaml, .yml or .json file.

    Returns:
        Its values by name: texts, numbers, flags, lists and tables of them.

    Raises:
        InputError: the file cannot be read, is no table of named values, or is too large or nested too deep.
    """
    file = os.fspath(path)
    # Windows' editors begin a file of UTF-8 with the mark.
    text = read_whole(file, MAX_TABLE_BYTES).removeprefix("\ufeff")
    suffix = Path(file).suffix
    yaml = partial(parse_yaml, file=file)
    parsers: dict[str, Callable[[str], Any]]
    parsers = {".toml": parse_toml, ".json": parse_json, ".yaml": yaml, ".yml": yaml}
    if suffix not in parsers:
        raise InputError(NO_FORMAT + _ELSEWHERE.get(suffix, ""), file=file)
    try:
        fields: Any = parsers[suffix](text)
    except RecursionError:
        raise too_deep(file) from None
    except ValueError as error:
        raise error if isinstance(error, InputError) else unreadable(error, file) from None
    if not isinstance(fields, dict):
        raise must_be("a table of fields", fields, field="the file", file=file)
    for name in fields:
        if not isinstance(name, str):
            raise InputError(f"a field's name must be a text, got {shown(name)}", file=file)
    refuse_large(fields, file)
    return fields


# Limits


def too_deep(file: str) -> InputError:
    """Returns the error of a file with lists and tables nested too deep."""
    return InputError(f"is nested deeper than {MAX_DEPTH_LEVELS} levels", file=file)


def too_large(file: str) -> InputError:
    """Returns the error of a file of too many values."""
    return InputError(f"holds more than {MAX_TABLE_VALUES:,} values", file=file)


def refuse_large(data: Any, file: str) -> None:
    """Refuses data nested too deep or of too many values, without walking what YAML's aliases repeat twice.

    Raises:
        InputError: it is or does.
    """
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(value: Any, depth: int) -> int:
        if not isinstance(value, dict | list | tuple):
            return 1
        if id(value) in sizes:
            return sizes[id(value)]
        if id(value) in open_ or depth > MAX_DEPTH_LEVELS:
            raise too_deep(file)
        open_.add(id(value))
        inner = value.values() if isinstance(value, dict) else value
        total = 1 + sum(size(item, depth + 1) for item in inner)
        open_.discard(id(value))
        sizes[id(value)] = total
        return total

    if size(data, 0) > MAX_TABLE_VALUES:
        raise too_large(file)


# Keys that are listed twice, of which readers keep the last in silence

_KEYS = re.compile(rb'"[ \t\r\n]*:')
"""Where a key ends, and maybe a quote inside of a text."""


def refuse_duplicates(names: Iterable[str]) -> None:
    """Refuses a table with a name listed twice.

    Raises:
        ValueError: naming the first.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{shown(name)} is listed twice")
        seen.add(name)


def refuse_columns(names: Collection[str], file: str | None) -> None:
    """Refuses the columns of a table where one is there twice, or there are too many.

    Raises:
        InputError: naming those that are there twice.

    >>> refuse_columns(["job", "lr", "lr"], "jobs.csv")
    Traceback (most recent call last):
    isobatch.errors.InputError: jobs.csv: the column 'lr' is in the header twice
    """
    if len(names) > MAX_COLUMNS:
        raise InputError(f"has {len(names):,} columns, more than the {MAX_COLUMNS:,} of a table", file=file)
    if doubled := sorted(name for name, times in Counter(iter(names)).items() if times > 1):
        what = "the column" if len(doubled) == 1 else "the columns"
        verb = "is" if len(doubled) == 1 else "are"
        raise InputError(
            f"{what} {few(map(shown, doubled))} {verb} in the header twice", file=file, field=doubled[0]
        )


def refuse_duplicate_keys(line: bytes, found: Any) -> None:
    """Refuses JSON with a key twice in an object, after a faster reader than Python's has made `found` of it.

    Where the text has no more quotes before a colon than `found` has keys, no key can be lost: a second reading is needed only for
    lines with such colons in their texts, and for those to be refused.

    Raises:
        InputError: naming the key.

    >>> refuse_duplicate_keys(b'{"lr": 1, "note": "a: b"}', {"lr": 1, "note": "a: b"})
    >>> refuse_duplicate_keys(b'{"lr": 1, "lr": 2}', {"lr": 2})
    Traceback (most recent call last):
    isobatch.errors.InputError: 'lr' is listed twice
    """
    if len(_KEYS.findall(line)) == _key_count(found):
        return
    try:
        # Numbers are not looked at: Python refuses those of thousands of digits.
        json.loads(line, object_pairs_hook=_unique_pairs, parse_int=str, parse_float=str)
    except ValueError as error:
        raise InputError(str(error)) from None


def _key_count(value: Any) -> int:
    """Counts the keys of all objects in a value."""
    inner = value.values() if isinstance(value, dict) else value
    own = len(value) if isinstance(value, dict) else 0
    return own + sum(_key_count(each) for each in inner if isinstance(each, (dict, list)))


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_duplicates(name for name, _ in pairs)
    return dict(pairs)


# Readers


def parse_json(text: str) -> Any:
    """Reads JSON.

    Raises:
        ValueError: it is none, or an object has a key twice.
        RecursionError: it is nested too deep.

    >>> parse_json('{"lr": 1, "lr": 2}')
    Traceback (most recent call last):
    ValueError: 'lr' is listed twice
    """
    return json.loads(text, object_pairs_hook=_unique_pairs)


def parse_toml(text: str) -> dict[str, Any]:
    """Reads TOML.

    Raises:
        ValueError: it is none; TOML itself forbids keys that are listed twice.
        RecursionError: it is nested too deep.
    """
    import tomllib

    return tomllib.loads(text)


def parse_yaml(text: str, file: str, *, tagged: Any = None) -> Any:
    """Reads YAML.

    Args:
        tagged: stands for a value that asks for Python (`!!python/object/apply:eval`), which nothing here does; None: an error.

    Raises:
        InputError: PyYAML is not installed, or the text is nested too deep or merges too many tables.
        ValueError: it is no YAML, a key is listed twice, or a number can be read in two ways.

    >>> parse_yaml("lr: 2e-5\\nduration: 1:30", "job.yaml")
    {'lr': 2e-05, 'duration': '1:30'}
    """
    try:
        import yaml

        from isobatch.files.yaml_loader import Loader
    except ModuleNotFoundError:
        raise needs_extra("YAML files", "fleet", file=file) from None
    try:
        loader = Loader(text)
        loader.tagged, loader.file = tagged, file
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
