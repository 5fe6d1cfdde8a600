"""The settings in the words of a command."""

from collections.abc import Sequence
from typing import NamedTuple


class Given(NamedTuple):
    """A setting in the words of a command."""

    name: str
    """With underscores for dashes."""
    value: str | bool
    """True of a flag without one."""
    at: int
    """The place of its word."""
    joined: bool
    """Whether the value is part of that word, else the next word has it."""


def given_settings(words: Sequence[str]) -> list[Given]:
    """Lists `--name value`, `--name=value` and `name=value`.

    >>> words = ["t.py", "--micro-batch", "2", "--bf16", "--lr=1", "a.b=3"]
    >>> [(given.name, given.value) for given in given_settings(words)]
    [('micro_batch', '2'), ('bf16', True), ('lr', '1'), ('a.b', '3')]
    """
    settings, at = [], 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        plain = name.lstrip("-+").replace("-", "_")
        is_flag = name.startswith("--") and len(name) > 2
        if equals and plain.replace(".", "").isidentifier() and (is_flag or not name.startswith("-")):
            settings.append(Given(plain, value, at, True))
        elif is_flag and at + 1 < len(words) and not words[at + 1].startswith("--"):
            settings.append(Given(plain, words[at + 1], at, False))
            at += 1
        elif is_flag:
            settings.append(Given(plain, True, at, False))
        at += 1
    return settings
