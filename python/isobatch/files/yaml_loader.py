"""The loader of YAML, with limits on depth and size, by libyaml if PyYAML has it (a tenth of the time).

PyYAML reads YAML 1.1: `2e-5` is a text, `1:30` is 90, `010` is 8, and the last of two equal keys wins in
silence. People expect YAML 1.2: `2e-5` is a number, `1:30` a text, `no` a word. `010` is refused, since the
two versions differ on it.
"""

import re
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from isobatch.errors import InputError
from isobatch.files.limits import MAX_DEPTH_LEVELS, MAX_TABLE_VALUES, too_deep, too_large
from isobatch.words import printable, shown

MAX_MERGE_KEYS = 20
"""`<<` in a file: those that merge a table that merges others multiply."""
_TAG = "tag:yaml.org,2002:"
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
"""Plain scalars of YAML 1.2's core schema: (kind, pattern, first characters)."""


_NO_PLAIN_VALUES = ("python/", "timestamp", "binary", "set", "omap", "pairs")
"""Beginnings of tags of which no text, number, flag, list or table comes."""
_MAX_KEY_DIGITS = 15
"""Of a whole number as a key: larger ones may all have one hash, and a table of them takes the square of
their number."""
_MAX_DIGITS = 400

_EVENTS: tuple[Any, ...] = (
    (yaml.cyaml.CParser,)
    if yaml.__with_libyaml__
    else (yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser)
)


class Loader(Composer, *_EVENTS, SafeConstructor, Resolver):  # type: ignore[misc]  # Any, without the stubs
    """Builds plain values, none from a tag of Python's.

    Attributes:
        tagged: stands for a value with such a tag; None: an error.
        file: for messages.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}
    tagged: Any = None
    file = ""
    nodes = depth = merges = 0

    def __init__(self, text: str) -> None:
        _EVENTS[0].__init__(self, text)
        for part in (*_EVENTS[1:], Composer, SafeConstructor, Resolver):
            part.__init__(self)

    def compose_node(self, parent: Any, index: Any) -> Any:
        # Before PyYAML recurses into it.
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH_LEVELS + 1:
            raise too_deep(self.file)
        if self.nodes > 2 * MAX_TABLE_VALUES:  # keys are nodes too
            raise too_large(self.file)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        self.merges += node.value == "<<"
        if self.merges > MAX_MERGE_KEYS:
            raise InputError(f"has more than {MAX_MERGE_KEYS} merge keys (<<)", file=self.file)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError) as error:  # PyYAML's, at a tag with another value
            if isinstance(error, InputError):
                raise
            problem = f"{shown(node.value)} is no {node.tag.removeprefix(_TAG)}"
            problem = str(error) if type(error) is ValueError else problem
            raise ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for key in keys:
                if key.tag == _TAG + "int" and len(key.value) > _MAX_KEY_DIGITS:
                    raise ConstructorError(None, None, "a key is too large a number", key.start_mark)
            first: dict[str, int] = {}
            for key in keys:
                line = key.start_mark.line + 1
                if key.value in first:
                    text = f"{shown(key.value)} is listed twice, in line {first[key.value]} and line {line}"
                    raise ConstructorError(None, None, text)
                first[key.value] = line
        return super().construct_mapping(node, deep)

    def construct_whole(self, node: Any) -> int:
        text = self.construct_scalar(node)
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text):,} digits is too large")
        if re.fullmatch(r"[-+]?0[0-9]+", text):
            raise ValueError(f"{text[:80]} may be octal: write it without the leading 0, or as 0o…")
        return int(text, 0)

    def construct_real(self, node: Any) -> float:
        return float(re.sub(r"\.(inf|nan)", r"\1", self.construct_scalar(node).lower()))

    def construct_tagged(self, _: str, node: Any) -> Any:
        if self.tagged is None:
            kind = printable(node.tag.removeprefix(_TAG), 80)
            raise ValueError(f"!!{kind} is not read: write a text, a number, a flag, a list or a table")
        return self.tagged


for kind, pattern, first in _SCALARS:
    Loader.add_implicit_resolver(_TAG + kind, re.compile(rf"^(?:{pattern})$"), list(first))
Loader.yaml_constructors = {
    tag: construct
    for tag, construct in SafeConstructor.yaml_constructors.items()
    if tag is None or not tag.removeprefix(_TAG).startswith(_NO_PLAIN_VALUES)
}
Loader.add_constructor(_TAG + "int", Loader.construct_whole)
Loader.add_constructor(_TAG + "float", Loader.construct_real)
for kind in _NO_PLAIN_VALUES:
    Loader.add_multi_constructor(_TAG + kind, Loader.construct_tagged)
