"""The formats that files have: YAML, JSON, TOML, and words of a shell. Names of others go in quotes wherever they need to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

# What YAML 1.1 and 1.2 read as themselves, and as nothing but a text.
_PLAIN = re.compile(r"[A-Za-z_./][\w./+-]*")
_SPOKEN_FOR = {"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", "nan", "inf"}


def scalar(value: Any) -> str:
    """A value as JSON has it, which YAML and TOML read alike; a small number with a point and a sign, which YAML 1.1 needs.

    >>> scalar(2e-05), scalar("cosine"), scalar("a: b"), scalar(True), scalar([0.9, 0.95])
    ('2.0e-05', 'cosine', '"a: b"', 'true', '[0.9, 0.95]')
    """
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _SPOKEN_FOR
        return value if plain else json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(scalar(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(str(k))}: {scalar(v)}" for k, v in value.items()) + "}"
    return number(value) if type(value) is float else json.dumps(value)


def number(value: float) -> str:
    """A float that every reader takes for one.

    >>> number(2e-05), number(0.1), number(1.0), number(1e-08)
    ('2.0e-05', '0.1', '1.0', '1.0e-08')
    """
    text = repr(value)
    base, e, power = text.partition("e")
    return f"{base if '.' in base else base + '.0'}e{power}" if e else text


def commented(text: str, mark: str = "#") -> str:
    """A comment of any text: no line of it leaves the comment."""
    return "\n".join(
        f"{mark} {line}".rstrip() for line in re.split(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+", text)
    )


def _remark(text: str | None) -> str:
    return f"  # {' '.join(text.split())}" if text else ""


def yaml(settings: Mapping[str, Any], remarks: Mapping[str, str]) -> str:
    """A YAML document."""
    return "\n".join(_yaml(settings, remarks, "", 0)) + "\n"


def _yaml(settings: Mapping[str, Any], remarks: Mapping[str, str], path: str, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for name, value in settings.items():
        at = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            yield f"{pad}{scalar(str(name))}:"
            yield from _yaml(value, remarks, at, depth + 1)
        elif (
            isinstance(value, str) and "\n" in value and not re.search(r"[^\n\t -~\xa0-\ud7ff]|^\s|\t", value)
        ):
            yield f"{pad}{scalar(str(name))}: |{'' if value.endswith(chr(10)) else '-'}"
            yield from (f"{pad}  {line}" if line else "" for line in value.rstrip("\n").split("\n"))
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{pad}{scalar(str(name))}:"
            for item in value:
                inner = list(_yaml(item, {}, at, depth + 2))
                yield f"{pad}  - {inner[0].lstrip()}"
                yield from inner[1:]
        else:
            yield f"{pad}{scalar(str(name))}: {scalar(value)}{_remark(remarks.get(at))}"


def json_text(settings: Mapping[str, Any]) -> str:
    """A JSON document, which has no comments."""
    return json.dumps(settings, indent=2) + "\n"


def toml(settings: Mapping[str, Any], remarks: Mapping[str, str]) -> str:
    """A TOML document of tables of values."""
    lines: list[str] = []
    for table, values in settings.items():
        lines += [f"[{table}]"]
        for name, value in values.items():
            text = json.dumps(value) if isinstance(value, str) else scalar(value)
            lines.append(f"{name} = {text}{_remark(remarks.get(f'{table}.{name}'))}")
        lines.append("")
    return "\n".join(lines)


def words(settings: Mapping[str, Any], *, dashes: bool = False) -> Iterator[list[str]]:
    """Each setting as the words of a command line: True is a flag alone, False none at all.

    >>> list(words({"lr": 2e-05, "bf16": True, "kwargs": {"power": 2.0}, "betas": [0.9, 0.95]}))
    [['--lr', '2.0e-05'], ['--bf16'], ['--kwargs', '{"power": 2.0}'], ['--betas', '0.9', '0.95']]
    """
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-') if dashes else name}"
        if value is True:
            yield [flag]
        elif isinstance(value, Mapping):
            yield [flag, json.dumps(value)]
        elif isinstance(value, list | tuple):
            yield [flag, *(item if isinstance(item, str) else scalar(item) for item in value)]
        elif value is not False and value is not None:
            yield [flag, value if isinstance(value, str) else scalar(value)]


def shell(parts: list[list[str]]) -> str:
    """A command over several lines, every word quoted where it needs to be.

    >>> print(shell([["torchrun", "my script.py"], ["--name", "$(rm -rf x)"]]))
    torchrun 'my script.py' \\
      --name '$(rm -rf x)'
    """
    return " \\\n  ".join(shlex.join(part) for part in parts)
