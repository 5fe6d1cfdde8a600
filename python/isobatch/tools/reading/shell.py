"""The arguments of a command line or of a script that holds one. Nothing is run, and no variable of the shell is asked for."""

from __future__ import annotations

import re
import shlex
from typing import Any

_FLAG = re.compile(r"(?:^|\s)--[A-Za-z][\w-]*", re.MULTILINE)
_SET = re.compile(
    r"^\s*(?:export\s+|declare\s+)?([A-Za-z_]\w*)=(\"[^\"$`]*\"|'[^']*'|[^\s\"'$`;&|()]*)\s*(?:#.*)?$"
)
_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}|\$[@*]")
"""Words of an array, which are no value of the flag before them."""
_NAMED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def looks_like_arguments(text: str) -> bool:
    """Whether a text has flags such as --global-batch-size in it."""
    return bool(_FLAG.search(text))


def arguments(text: str, file: str) -> dict[str, Any]:  # noqa: ARG001 - as the other formats
    """Each `--flag`, with underscores for dashes: its value, a list of several, or True where it has none.

    A variable has the value that the same file gives it literally (`BATCH=8`); one that the file does not give stays as it is
    written, so that whoever needs it can say so. Of a flag that comes twice the last counts, as for argparse.

    >>> arguments("B=8\\ntorchrun t.py --micro-batch-size $B --bf16 --split 1,2 --adam-beta1=0.9", "a.sh")
    {'micro_batch_size': '8', 'bf16': True, 'split': '1,2', 'adam_beta1': '0.9'}
    """
    known: dict[str, str] = {}
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        match = _SET.match(line)
        if match:
            known[match[1]] = match[2].strip("\"'")
        else:
            lines.append(line)
    found: dict[str, Any] = {}
    for line in lines:
        _take(found, _expanded(_words(line), known))
    return found


def _words(line: str) -> list[str]:
    """The words of a line. An array such as `ARGS=(--lr 1)` glues its brackets to the first word and to the last."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quote that spans lines, or an apostrophe in a text
        words = line.split()
    words = [word.partition("(")[2] if re.match(r"\w+\+?=\(", word) else word for word in words]
    return [word.rstrip(")") if "(" not in word else word for word in words]


def _take(found: dict[str, Any], words: list[str]) -> None:
    """The flags of a line; what follows one up to the next are its values."""
    flag = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            flag = name.replace("-", "_")
            found[flag] = value if equals else True
        elif _ARRAY.fullmatch(word):
            flag = None
        elif flag is not None and word:
            held = found[flag]
            found[flag] = word if held is True else [*held, word] if isinstance(held, list) else [held, word]


def _expanded(words: list[str], known: dict[str, str]) -> list[str]:
    """The words with the variables that the file itself sets; a variable that holds several words gives several."""
    out: list[str] = []
    for word in words:
        text = _NAMED.sub(lambda m: known.get(m[1] or m[2], m[0]), word)
        if " --" in text or (text != word and " " in text):
            # Flags that a variable holds: ARGS="--lr 1e-4 --bf16".
            text = re.sub(r"^\w+=", "", text)
            out += text.split()
        else:
            out.append(text)
    return out
