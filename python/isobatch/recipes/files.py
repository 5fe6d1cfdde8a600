"""A recipe's fields in files: TOML, YAML or JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, must_be, unreadable
from isobatch.files.formats import json_text, parse_json, refuse_large, toml_text, too_deep, yaml_text
from isobatch.files.whole import read_whole, write_whole
from isobatch.words import count, shown

MAX_RECIPE_BYTES = 1 << 20


def read_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table in a recipe file.

    Args:
        path: a .toml, .yaml, .yml or .json file.

    Returns:
        Its values by name: texts, numbers, flags, lists and, for a schedule, tables of them.

    Raises:
        InputError: the file cannot be read, is no table, or is larger or nested deeper than a recipe can be.
    """
    file = os.fspath(path)
    try:
        fields = _parse(_text(file), file)
    except RecursionError:
        raise too_deep(file) from None
    except ValueError as error:
        raise error if isinstance(error, InputError) else unreadable(error, file) from None
    if not isinstance(fields, dict):
        raise must_be("a table of a recipe's fields", fields, field="the file", file=file)
    for name in fields:
        if not isinstance(name, str):
            raise InputError(f"a field's name must be a text, got {shown(name)}", file=file)
    refuse_large(fields, file)
    return fields


def write_fields(path: str | os.PathLike[str], fields: Mapping[str, Any]) -> None:
    """Writes a table that `read_fields` reads.

    Raises:
        InputError: the suffix names no format, or the file cannot be written.
    """
    suffix = Path(path).suffix
    if suffix == ".toml":
        text = toml_text(fields)
    elif suffix == ".json":
        text = json_text(fields)
    elif suffix in (".yaml", ".yml"):
        text = yaml_text(fields)
    else:
        raise _no_format(os.fspath(path))
    write_whole(path, text.encode())


def _text(file: str) -> str:
    try:
        size = Path(file).stat().st_size
    except OSError:
        size = 0  # reading it says why
    if size > MAX_RECIPE_BYTES:
        raise InputError(
            f"has {count(size)} bytes; a recipe has at most {count(MAX_RECIPE_BYTES)}", file=file
        )
    return read_whole(file).removeprefix("\ufeff")  # Windows' editors begin a file of UTF-8 with it


def _parse(text: str, file: str) -> Any:
    suffix = Path(file).suffix
    if suffix == ".toml":
        import tomllib

        return tomllib.loads(text)
    if suffix == ".json":
        return parse_json(text)
    if suffix in (".yaml", ".yml"):
        from isobatch.files.yaml import parse_yaml

        return parse_yaml(text, file)
    raise _no_format(file)


def _no_format(file: str) -> InputError:
    return InputError("cannot tell the format: use .toml, .yaml or .json", file=file)
