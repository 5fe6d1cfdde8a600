"""Tables as YAML, TOML and JSON text, and how large a table from a file may be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.files.doubles import refuse_doubles

MAX_DEPTH_LEVELS = 50
MAX_TABLE_VALUES = 200_000

# What YAML 1.1 and 1.2 read as themselves, and as nothing but a text.
_PLAIN = re.compile(r"[A-Za-z_./][\w./+-]*")
_RESERVED = {"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", "nan", "inf"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def refuse_large(data: Any, file: str) -> None:
    """Refuses what is too deep, or too large once YAML's aliases are written out: each value is walked once.

    Raises:
        InputError: it is.
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
        raise InputError(f"holds more than {MAX_TABLE_VALUES:,} values", file=file)


def too_deep(file: str) -> InputError:
    """The error for a file of too many levels."""
    return InputError(f"is nested deeper than {MAX_DEPTH_LEVELS} levels", file=file)


def parse_json(text: str) -> Any:
    """Reads JSON in which no object has a key twice.

    Raises:
        ValueError: it is no JSON, or names the key.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        refuse_doubles(name for name, _ in pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def json_text(settings: Mapping[str, Any]) -> str:
    """A JSON document."""
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def number_text(value: float) -> str:
    """A float that every reader takes for one: YAML 1.1 wants a point before the exponent.

    >>> number_text(2e-05), number_text(0.1), number_text(1.0), number_text(1e-08)
    ('2.0e-05', '0.1', '1.0', '1.0e-08')
    """
    base, e, power = repr(value).partition("e")
    return f"{base if '.' in base else base + '.0'}e{power}" if e else base


def scalar_text(value: Any) -> str:
    """A value on one line of YAML, which is JSON but for plain words and small numbers.

    >>> scalar_text(2e-05), scalar_text("cosine"), scalar_text("a: b"), scalar_text(True), scalar_text([0.9, 0.95])
    ('2.0e-05', 'cosine', '"a: b"', 'true', '[0.9, 0.95]')
    """
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(scalar_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar_text(str(k))}: {scalar_text(v)}" for k, v in value.items()) + "}"
    return number_text(value) if type(value) is float else json.dumps(value)


def commented(text: str) -> str:
    """A comment of any text: no line of it leaves the comment."""
    return "\n".join(
        f"# {line}".rstrip() for line in re.split(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+", text)
    )


def remark(remarks: Mapping[str, str], at: str) -> str:
    """What is said behind a value, by its path."""
    return f"  # {' '.join(remarks[at].split())}" if at in remarks else ""


def yaml_text(settings: Mapping[str, Any], remarks: Mapping[str, str] | None = None) -> str:
    """A YAML document, with a comment behind each value that has a remark.

    >>> print(yaml_text({"optimizer": {"lr": 2e-5, "betas": [0.9, 0.95]}}, {"optimizer.lr": "was 1e-5"}), end="")
    optimizer:
      lr: 2.0e-05  # was 1e-5
      betas: [0.9, 0.95]
    """
    return "\n".join(_yaml(settings, remarks or {}, "", 0)) + "\n"


def _yaml(settings: Mapping[str, Any], remarks: Mapping[str, str], path: str, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for name, value in settings.items():
        at, key = f"{path}.{name}" if path else str(name), f"{pad}{scalar_text(str(name))}:"
        if isinstance(value, Mapping) and value:
            yield key
            yield from _yaml(value, remarks, at, depth + 1)
        elif isinstance(value, str) and "\n" in value and _fits_a_block(value):
            yield f"{key} |{'' if value.endswith(chr(10)) else '-'}"
            yield from (f"{pad}  {line}" if line else "" for line in value.rstrip("\n").split("\n"))
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            yield key
            for item in value:
                inner = list(_yaml(item, {}, at, depth + 2))
                yield f"{pad}  - {inner[0].lstrip()}"
                yield from inner[1:]
        else:
            yield f"{key} {scalar_text(value)}{remark(remarks, at)}"


def _fits_a_block(text: str) -> bool:
    return not re.search(r"[^\n\t -~\xa0-\ud7ff]|^\s|\t", text)


def toml_text(settings: Mapping[str, Any], remarks: Mapping[str, str] | None = None) -> str:
    """A TOML document: plain values, then a section for each table; what is None is left out.

    >>> print(toml_text({"lr": 1e-5, "training": {"steps": 9, "seed": None}}, {"training.steps": "was 3"}), end="")
    lr = 1.0e-05
    <BLANKLINE>
    [training]
    steps = 9  # was 3
    """
    flat = [(name, value) for name, value in settings.items() if not isinstance(value, Mapping)]
    sections = [_toml(flat, remarks or {}, "")]
    for name, table in settings.items():
        if isinstance(table, Mapping):
            sections.append(f"[{_toml_key(name)}]\n{_toml(table.items(), remarks or {}, f'{name}.')}")
    return "\n".join(filter(None, sections))


def _toml(pairs: Iterable[tuple[str, Any]], remarks: Mapping[str, str], path: str) -> str:
    return "".join(
        f"{_toml_key(name)} = {_toml_value(value)}{remark(remarks, f'{path}{name}')}\n"
        for name, value in pairs
        if value is not None
    )


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return number_text(value) if type(value) is float else json.dumps(value)
