"""JSON, YAML and TOML, written for all readers to read alike."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import InputError
from isobatch.files.formats import NO_FORMAT
from isobatch.files.whole import write_whole
from isobatch.words import printable

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*|\.{1,2}/[\w./+-]*")
"""A text without quotes to YAML 1.1 and 1.2, but for the words below."""
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", "nan", "inf"})
_YAML_INFINITE = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}


def quoted(text: str) -> str:
    """Writes a text between quotes, as JSON, YAML and TOML read it alike.

    >>> quoted('say "é"'), quoted("\\x7f")
    ('"say \\\\"é\\\\""', '"\\\\u007f"')
    """
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """Escapes unprintable characters: JSON, YAML and TOML refuse some, and they hide text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" or ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in text)


def number_text(value: float) -> str:
    """Writes a float for every reader: YAML 1.1 needs a point and a sign.

    >>> number_text(2e-05), number_text(0.1), number_text(1.0), number_text(1e-08)
    ('2.0e-05', '0.1', '1.0', '1.0e-08')
    """
    text = repr(value)
    base, e, power = text.partition("e")
    return f"{base if '.' in base else base + '.0'}e{power}" if e else text


def scalar_text(value: Any) -> str:
    """Writes a value on one line of YAML, quoted where it must be.

    >>> tuple(map(scalar_text, (2e-05, "cosine", "a: b", True, [0.9, 0.95])))
    ('2.0e-05', 'cosine', '"a: b"', 'true', '[0.9, 0.95]')
    """
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS else quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(scalar_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar_text(str(k))}: {scalar_text(v)}" for k, v in value.items()) + "}"
    if type(value) is float:
        return _YAML_INFINITE.get(repr(value)) or number_text(value)
    return json.dumps(value)


def json_text(fields: Mapping[str, Any]) -> str:
    """Writes a JSON document."""
    return _escaped(json.dumps(fields, indent=2, ensure_ascii=False)) + "\n"


def shell_word(text: str) -> str:
    """Writes one word for bash to read every byte of; unprintable ones are escaped.

    >>> shell_word("train.py"), shell_word("a b"), shell_word("a\\x1b[2J")
    ('train.py', "'a b'", "$'a\\\\x1b[2J'")
    """
    if text.replace("\n", "").isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_shell_character, text)) + "'"


def _shell_character(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    # A name that is no UTF-8 is the bytes that it was; other halves of a character are no bytes at all.
    how = "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace"
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors=how))


def shell_words(words: Iterable[str]) -> str:
    """Writes words for bash, with spaces between them."""
    return " ".join(map(shell_word, words))


def commented(text: str) -> str:
    """Writes a comment of any text: no line of it leaves the comment."""
    lines = re.split(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+", text)
    return "\n".join(f"# {printable(line, len(line))}".rstrip() for line in lines)


def remark(remarks: Mapping[str, str], at: str) -> str:
    """Writes the comment behind a value, found by the value's dotted name."""
    return f"  # {printable(' '.join(remarks[at].split()))}" if at in remarks else ""


def yaml_text(fields: Mapping[str, Any], remarks: Mapping[str, str] | None = None) -> str:
    """Writes a YAML document, with remarks behind values by their dotted names.

    >>> print(yaml_text({"lr": 1e-5, "schedule": {"kind": "cosine"}}, {"schedule.kind": "as tuned"}), end="")
    lr: 1.0e-05
    schedule:
      kind: cosine  # as tuned
    """
    return "\n".join(_yaml_lines(fields, remarks or {}, "", 0) if fields else ["{}"]) + "\n"


def _yaml_lines(
    fields: Mapping[str, Any], remarks: Mapping[str, str], path: str, depth: int
) -> Iterator[str]:
    pad = "  " * depth
    for name, value in fields.items():
        at = f"{path}.{name}" if path else str(name)
        key = f"{pad}{scalar_text(str(name))}:"
        if isinstance(value, Mapping) and value:
            yield key
            yield from _yaml_lines(value, remarks, at, depth + 1)
        elif _is_block(value):
            yield from _block_lines(key, value, f"{pad}  ")
        elif isinstance(value, list) and any(map(_is_block, value)):
            yield key
            for item in value:
                if _is_block(item):
                    yield from _block_lines(f"{pad}  -", item, f"{pad}    ")
                else:
                    yield f"{pad}  - {scalar_text(item)}"
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) and item for item in value):
            yield key
            for item in value:
                inner = list(_yaml_lines(item, {}, at, depth + 2))
                yield f"{pad}  - {inner[0].lstrip()}"
                yield from inner[1:]
        else:
            yield f"{key} {scalar_text(value)}{remark(remarks, at)}"


def _is_block(value: Any) -> bool:
    """Tells whether YAML can hold a text of several lines as it is."""
    if not isinstance(value, str) or "\n" not in value or value[0].isspace() or value.endswith("\n\n"):
        return False
    return all(line.isprintable() for line in value.split("\n"))


def _block_lines(before: str, text: str, pad: str) -> Iterator[str]:
    """A text of several lines, as it is."""
    yield f"{before} |{'' if text.endswith(chr(10)) else '-'}"
    yield from (f"{pad}{line}" if line else "" for line in text.rstrip("\n").split("\n"))


def toml_text(fields: Mapping[str, Any], remarks: Mapping[str, str] | None = None) -> str:
    """Writes a TOML document: plain values, then a section for each table; values that are None are left out.

    >>> tree = {"lr": 1e-5, "training": {"steps": 9, "seed": None}}
    >>> print(toml_text(tree, {"training.steps": "was 3"}), end="")
    lr = 1.0e-05
    <BLANKLINE>
    [training]
    steps = 9  # was 3
    """
    remarks = remarks or {}
    plain = ((name, value) for name, value in fields.items() if not isinstance(value, Mapping))
    sections = ["".join(_toml_lines(plain, remarks, ""))]
    for name, table in fields.items():
        if isinstance(table, Mapping):
            lines = "".join(_toml_lines(table.items(), remarks, f"{name}."))
            sections.append(f"[{_toml_key(name)}]\n{lines}")
    return "\n".join(filter(None, sections))


def _toml_lines(pairs: Iterable[tuple[str, Any]], remarks: Mapping[str, str], path: str) -> Iterator[str]:
    for name, value in pairs:
        if value is not None:
            yield f"{_toml_key(name)} = {_toml_value(value)}{remark(remarks, path + name)}\n"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else quoted(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    return number_text(value) if type(value) is float else json.dumps(value)


def write_fields(path: str | os.PathLike[str], fields: Mapping[str, Any]) -> None:
    """Writes a table for `isobatch.files.formats.read_fields`, whole or not at all."""
    writers = {".toml": toml_text, ".json": json_text, ".yaml": yaml_text, ".yml": yaml_text}
    if (text := writers.get(Path(path).suffix)) is None:
        raise InputError(NO_FORMAT, file=os.fspath(path))
    write_whole(path, text(fields).encode())
