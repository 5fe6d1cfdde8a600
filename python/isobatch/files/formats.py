"""JSON, YAML and TOML, read with no key twice and within one limit of size and depth."""

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, must_be, needs_extra, unreadable
from isobatch.files.limits import (
    DoubledNameError,
    refuse_large,
    refuse_long_keys,
    refuse_many_names,
    too_deep,
    unique_pairs,
)
from isobatch.files.whole import read_whole
from isobatch.words import shown

MAX_TABLE_BYTES = 4 << 20
NO_FORMAT = "cannot tell the format: use .toml, .yaml or .json"
_ELSEWHERE = {
    **dict.fromkeys((".sh", ".py", ".slurm", ".sbatch"), "; a script is read by --from (ib.Recipe.read)"),
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".jsonl"), "; a table of jobs is planned by isobatch fleet"),
}
"""Files that people give for a recipe, and the command or option for each."""


def read_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the table in a .toml, .yaml, .yml or .json file, as values by name."""
    file = os.fspath(path)
    # Windows' editors begin a file of UTF-8 with the mark.
    text = read_whole(file, MAX_TABLE_BYTES).removeprefix("\ufeff")
    suffix = Path(file).suffix
    yaml, toml = partial(parse_yaml, file=file), partial(parse_toml, file=file)
    parsers: dict[str, Callable[[str], Any]]
    parsers = {".toml": toml, ".json": parse_json, ".yaml": yaml, ".yml": yaml}
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


def parse_json(text: str) -> Any:
    """Reads JSON; a ValueError if it is none, or an object has a key twice.

    >>> parse_json('{"step": 7')
    Traceback (most recent call last):
    ValueError: it is cut off or empty
    """
    try:
        return json.loads(text, object_pairs_hook=unique_pairs)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated") or re.fullmatch(r"[-+.\w]*\s*", text[error.pos :]):
            raise ValueError("it is cut off or empty") from None
        raise
    except DoubledNameError as error:
        places = re.finditer(rf"{re.escape(json.dumps(error.name))}\s*:", text)
        lines = dict.fromkeys(str(text.count("\n", 0, place.start()) + 1) for place in places)
        raise ValueError(
            f"{error}, in line {' and line '.join(lines)}" if len(lines) > 1 else str(error)
        ) from None


def parse_toml(text: str, file: str = "") -> dict[str, Any]:
    """Reads TOML; a ValueError if it is none."""
    import tomllib

    refuse_long_keys(text, file)
    refuse_many_names(text, file, "=")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{error}{_comma_hint(text)}") from None


_COMMA = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(\d+),(\d+)[ \t]*(?:#.*)?$", re.MULTILINE)


def _comma_hint(text: str) -> str:
    """Asks for a point in the fractions of a file with a decimal comma."""
    match = _COMMA.search(text)
    return "" if match is None else f": a fraction has a point, {match[1]} = {match[2]}.{match[3]}"


def parse_yaml(text: str, file: str, *, tagged: Any = None) -> Any:
    """Reads YAML; `tagged` stands for a value with a tag of Python's, None: it is an error."""
    refuse_many_names(text, file, ":")
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
        raise ValueError(" ".join(str(error).split()).replace(' in "<unicode string>"', "")) from None
