"""YAML as people expect it, which is YAML 1.2: `2e-5` is a number, `1:30` a text, `no` a word.

PyYAML reads YAML 1.1, where `2e-5` is a text, `1:30` is 90, `010` is 8, and of a key that is listed twice the last one wins in
silence. `010` is refused here, since the two versions differ on it.
"""

from __future__ import annotations

import re
from typing import Any

from isobatch.errors import needs_extra
from isobatch.files.doubles import refuse_doubles

try:
    import yaml
except ModuleNotFoundError:
    yaml = None

_TAG = "tag:yaml.org,2002:"
# What a plain scalar is, by YAML 1.2's core schema: (kind, pattern, first characters).
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
)
_WORDS = re.compile(r"\.(inf|nan)")


def parse_yaml(text: str, file: str, *, tagged: Any = None) -> Any:
    """The value in a YAML text.

    Args:
        tagged: what a value is that asks for Python (`!!python/object/apply:eval`), which nothing here does; None: an error.

    Raises:
        InputError: PyYAML is not installed.
        ValueError: it is no YAML, a key is listed twice, or a number can be read in two ways.
    """
    needed = _needed(file)  # not inside the try: its `except` names PyYAML's error
    try:
        return needed.load(text, _loader(tagged))  # a SafeLoader
    except needed.YAMLError as error:
        raise ValueError(error) from None


def _needed(file: str) -> Any:
    if yaml is None:
        raise needs_extra("YAML files", "fleet", file=file)
    return yaml


def _loader(tagged: Any) -> Any:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # Any, where PyYAML is missing
        yaml_implicit_resolvers: dict[str, Any] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            refuse_doubles(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            return super().construct_mapping(node, deep)

    def integer(_: Any, node: Any) -> int:
        if re.fullmatch(r"[-+]?0[0-9]+", node.value):
            raise ValueError(f"{node.value[:80]} may be octal: write it without the leading 0, or as 0o…")
        return int(node.value, 0)

    for kind, pattern, first in _SCALARS:
        Loader.add_implicit_resolver(_TAG + kind, re.compile(rf"^(?:{pattern})$"), list(first))
    Loader.add_constructor(_TAG + "int", integer)
    Loader.add_constructor(_TAG + "float", lambda _, node: float(_WORDS.sub(r"\1", node.value.lower())))
    if tagged is not None:
        Loader.add_multi_constructor(_TAG + "python/", lambda *_: tagged)
    return Loader
