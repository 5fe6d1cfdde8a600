"""Braces in the words of a command, such as `{micro_batch}`, where a split's numbers go."""

import re
from collections.abc import Callable, Iterable, Mapping
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
