"""Braces in a command, such as `--batch-size {micro_batch}`: where a split's numbers go."""

import re
from collections.abc import Iterable, Mapping

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


def numbers(split: Split) -> dict[str, int]:
    """Returns the number of each brace at a split.

    >>> numbers(Split(2, 4, 3))["passes"]
    8
    """
    return {
        "gpus": split.ranks,
        "micro_batch": split.micro_batch,
        "accumulation": split.accumulation,
        "rank_batch": split.rank_batch,
        "effective_batch": split.effective_batch,
        "passes": split.ranks * split.accumulation,
    }


def fill(text: str, split: Split) -> str:
    """Fills the braces of a word; braces of other names stay.

    >>> fill("data.train_batch_size={effective_batch} {epoch}", Split(2, 2, 2))
    'data.train_batch_size=8 {epoch}'
    """
    filled = numbers(split)
    return _BRACE.sub(lambda brace: str(filled.get(brace[1], brace[0])), text)


def names_in(words: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Lists the braces of a command.

    Raises:
        InputError: a brace has a name that is nearly one of NAMES.
    """
    written = {name for word in (*words, *environment.values()) for name in _BRACE.findall(word)}
    for name in sorted(written.difference(NAMES)):
        if (known := nearest(name, NAMES)) is not None:
            raise InputError(f"unknown brace {{{name}}}: did you mean {{{known}}}?")
    return written & {*NAMES}


def check(names: set[str]) -> None:
    """Checks that the braces settle the split of a step's samples on a rank.

    Raises:
        InputError: they leave the micro-batch or the accumulation open.
    """
    if len({_MAKES[name] for name in names if name in _MAKES}) >= 2:
        return
    written = " and ".join(f"{{{name}}}" for name in NAMES if name in names and name in _MAKES)
    raise InputError(
        f"{written} alone cannot say how a rank splits its samples: write two of {{micro_batch}}, "
        "{accumulation} and {rank_batch} (samples of a rank in a step) or {effective_batch} (of all "
        "ranks) into the command"
    )
