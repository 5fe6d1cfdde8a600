"""The words of a command: its settings, and braces such as `{micro_batch}`, where a split's numbers go."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.words import nearest

NAMES = ("gpus", "micro_batch", "accumulation", "rank_batch", "effective_batch", "passes")
"""Names of braces; `passes` are a step's micro-batches over all ranks, as nanoGPT's accumulation."""
_BRACE = re.compile(r"\{(\w+)\}")
_MAKES = {
    "micro_batch": "micro-batch",
    "accumulation": "accumulation",
    "passes": "accumulation",
    "rank_batch": "batch",
    "effective_batch": "batch",
}
"""By name, the number that a brace gives beside the ranks; two of the three make a split."""


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
    """Fills the braces of a word; braces of other names stay.

    >>> fill_braces("data.train_batch_size={effective_batch} {passes} {epoch}", Split(2, 4, 2))
    'data.train_batch_size=16 8 {epoch}'
    """
    numbers = {
        "gpus": split.ranks,
        "micro_batch": split.micro_batch,
        "accumulation": split.accumulation,
        "rank_batch": split.rank_batch,
        "effective_batch": split.effective_batch,
        "passes": split.ranks * split.accumulation,
    }
    return _BRACE.sub(lambda brace: str(numbers.get(brace[1], brace[0])), text)


def braces_in(words: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Lists the braces of a command; a name close to one of NAMES is refused."""
    written = {name for word in (*words, *environment.values()) for name in _BRACE.findall(word)}
    for name in sorted(written.difference(NAMES)):
        if (known := nearest(name, NAMES)) is not None:
            raise InputError(f"unknown brace {{{name}}}: did you mean {{{known}}}?")
    return written & {*NAMES}


def check_braces(names: set[str]) -> None:
    """Refuses braces with the micro-batch or the accumulation left open."""
    if len({_MAKES[name] for name in names if name in _MAKES}) >= 2:
        return
    written = " and ".join(f"{{{name}}}" for name in NAMES if name in names and name in _MAKES)
    raise InputError(
        f"{written} alone cannot say how a rank splits its samples: write two of {{micro_batch}}, "
        "{accumulation} and {rank_batch} (samples of a rank in a step) or {effective_batch} (of all "
        "ranks) into the command"
    )
