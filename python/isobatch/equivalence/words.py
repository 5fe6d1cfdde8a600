"""The words of a command: its settings, and braces such as `{micro_batch}`, where a split's numbers go."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.words import nearest

_BRACE = re.compile(r"\{(\w+)\}")
_BRACES: dict[str, tuple[str, Callable[[Split], int]]] = {
    "gpus": ("ranks", lambda split: split.ranks),
    "micro_batch": ("micro-batch", lambda split: split.micro_batch),
    "accumulation": ("accumulation", lambda split: split.accumulation),
    "rank_batch": ("batch", lambda split: split.rank_batch),
    "effective_batch": ("batch", lambda split: split.effective_batch),
    "passes": ("accumulation", lambda split: split.ranks * split.accumulation),
}
"""By name, what a brace settles, and its number; beside the ranks two of the others make a split."""


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


def fill_braces(text: str, split: Split) -> str:
    """Fills the braces of a word; braces of other names stay."""

    def number(brace: re.Match[str]) -> str:
        return str(_BRACES[brace[1]][1](split)) if brace[1] in _BRACES else brace[0]

    return _BRACE.sub(number, text)


def braces_in(words: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Lists the braces of a command; a name close to a known one is refused."""
    written = {name for word in (*words, *environment.values()) for name in _BRACE.findall(word)}
    for name in sorted(written.difference(_BRACES)):
        if (known := nearest(name, [*_BRACES])) is not None:
            raise InputError(f"unknown brace {{{name}}}: did you mean {{{known}}}?")
    return written & _BRACES.keys()


class Settled(NamedTuple):
    """The numbers of a split in braces, beside its ranks; the code has the rest."""

    micro_batch: bool
    accumulation: bool


def settled_by(words: Iterable[str], environment: Mapping[str, str]) -> Settled:
    """Reads the braces of a command: a rank's batch alone is the micro-batch of one pass."""
    makes = {_BRACES[name][0] for name in braces_in(words, environment)} - {"ranks"}
    return Settled(bool(makes & {"micro-batch", "batch"}), "accumulation" in makes or len(makes) > 1)
