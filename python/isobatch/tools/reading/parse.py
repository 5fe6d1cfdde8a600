"""From text to plain values, whatever the format: JSON, YAML, TOML, a command line, or the literals of a Python file.

Files come from anywhere, so what they may cost is bounded: their size, their depth, and what YAML's aliases expand to.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from isobatch.errors import InputError, must_be, needs_extra, unreadable
from isobatch.files.formats import parse_yaml, refuse_duplicates
from isobatch.tools.reading.bases import Bases
from isobatch.tools.reading.bounds import MAX_BYTES, MAX_DEPTH, MAX_MERGES, check_size
from isobatch.tools.reading.commented import is_deepspeeds, without_comments
from isobatch.tools.reading.functions import configuration, has_functions
from isobatch.tools.reading.literals import UNKNOWN, merged, python_literals
from isobatch.tools.reading.shell import arguments, looks_like_arguments

_TABLE = re.compile(r"^\s*\[[\w.\"'-]+\]\s*(#.*)?$", re.MULTILINE)
_ASSIGNED = re.compile(r"^\s*[\w.\"'-]+\s*=\s*\S", re.MULTILINE)
_PYTHON = re.compile(r"^\w+\s*=\s*(dict\(|\[|\{|')|^from \S+ import |^import \S+", re.MULTILINE)


def parse(
    text: str, *, file: str, suffix: str = "", bases: Bases | None = None, name: str = ""
) -> dict[str, Any]:
    """The table that a file holds; the format is found by what is in it, and by the suffix where that leaves it open.

    Args:
        bases: reads the files that this one builds on; None: they stay names.
        name: of the function, in a Python file of several configurations.

    Raises:
        InputError: it has no such format, is too large or too deep, or holds no table.

    >>> parse('{"learning_rate": 2e-5}', file="a.json"), parse("lr: 2e-5", file="a.yaml"), parse("--lr 2e-5", file="a.sh")
    ({'learning_rate': 2e-05}, {'lr': 2e-05}, {'lr': '2e-5'})
    """
    if len(text) > MAX_BYTES:
        raise InputError(
            f"has {len(text):,} characters, more than the {MAX_BYTES:,} that a configuration may have",
            file=file,
        )
    text = text.removeprefix("\ufeff")  # Windows' editors begin a file of UTF-8 with it
    if not text.strip():
        raise InputError("is empty: a configuration must have settings", file=file)
    try:
        data = _read(text, file, suffix, bases, name)
    except RecursionError:
        raise InputError(f"is nested deeper than {MAX_DEPTH} levels", file=file) from None
    except (ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, file) from None
    if not isinstance(data, dict):
        raise must_be("a table of settings", type(data), field="the file", file=file)
    check_size(data, file)
    return data


def _read(text: str, file: str, suffix: str, bases: Bases | None, name: str) -> Any:
    if _is_python(text, suffix):
        if name or has_functions(text):
            return configuration(text, file, name)
        return python_literals(text, file, None if bases is None else bases.settings)
    data = _reader(text, suffix)(text, file)
    for key in ("_base_", "_BASE_"):
        if bases is not None and isinstance(data, dict) and key in data:
            check_size(data, file)
            data = merged(data, bases.settings(data.pop(key), key))
    return data


def _is_python(text: str, suffix: str) -> bool:
    return suffix == ".py" or (suffix == "" and text.lstrip()[:1] != "{" and bool(_PYTHON.search(text)))


def _reader(text: str, suffix: str) -> Any:
    if text.lstrip()[:1] == "{":
        return _json
    if suffix == ".toml" or (suffix not in (".yaml", ".yml") and _is_toml(text)):
        return _toml
    if suffix not in (".yaml", ".yml") and looks_like_arguments(text):
        return arguments
    return _yaml


def _is_toml(text: str) -> bool:
    return bool(_TABLE.search(text) and _ASSIGNED.search(text))


def _toml(text: str, file: str) -> Any:  # noqa: ARG001 - as the others
    return tomllib.loads(text)


def _json(text: str, file: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        refuse_duplicates(name for name, _ in pairs)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError:
        plain = without_comments(text)
        if plain == text:
            raise
        try:
            data = json.loads(plain, object_pairs_hook=once)
        except json.JSONDecodeError:
            data = None
        if data is None:
            raise
    if not is_deepspeeds(data):
        raise InputError(
            "has comments or trailing commas, which JSON does not have (only DeepSpeed's files may): remove them, or save it as YAML",
            file=file,
        )
    return data


def _yaml(text: str, file: str) -> Any:
    _check_yaml(text, file)
    return parse_yaml(text, file, tagged=UNKNOWN)


def _check_yaml(text: str, file: str) -> None:
    """Depth before anything recursive runs, and few merge keys: those that merge a table that merges others multiply."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise needs_extra("YAML files", "fleet", file=file) from None
    depth = merges = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            merges += isinstance(event, yaml.ScalarEvent) and event.value == "<<"
            if depth > MAX_DEPTH:
                raise InputError(f"is nested deeper than {MAX_DEPTH} levels", file=file)
            if merges > MAX_MERGES:
                raise InputError(f"has more than {MAX_MERGES} merge keys (<<)", file=file)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
