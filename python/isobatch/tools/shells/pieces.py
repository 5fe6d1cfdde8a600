"""Parts of words: what bash would replace in them, and what `${NAME%…}` leaves."""

from __future__ import annotations

import re

from isobatch.tools.shells.tree import Parameter, Text, Word

_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.).*\}", re.DOTALL)
ALWAYS_SET = {"PWD", "OLDPWD", "HOME", "USER", "PATH", "SHELL", "IFS", "RANDOM", "SECONDS", "LINENO", "HOSTNAME", "HOSTTYPE", "OSTYPE", "MACHTYPE", "UID", "EUID", "PPID", "BASH", "BASH_VERSION", "BASH_SOURCE", "BASH_VERSINFO", "BASHPID", "BASH_LINENO", "FUNCNAME", "EPOCHSECONDS", "EPOCHREALTIME", "SHLVL", "SHELLOPTS", "BASHOPTS", "PIPESTATUS", "DIRSTACK", "GROUPS", "OPTIND", "OPTERR", "SRANDOM", "BASH_COMMAND", "BASH_SUBSHELL", "LANG", "TERM", "PS4", "_", "BASH_ARGV", "BASH_ARGC", "BASH_ARGV0", "BASH_REMATCH", "COMP_WORDBREAKS"}  # fmt: skip
"""Variables that bash or the system gives a value."""


class Field:
    """A word while it is put together; `bare` has its unquoted characters, which may be a pattern of files."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.bare = ""

    def add(self, text: str, quoted: bool) -> None:
        """Adds characters; quoted ones are a word even where there are none."""
        self.text = (self.text or "") + text
        self.bare += "_" * len(text) if quoted else text


def is_many(part: Parameter) -> str:
    """`@` or `*` of all values of an array or of the arguments; else empty."""
    if part.name in ("@", "*"):
        return part.name
    index = part.place
    if index is not None and len(index) == 1 and isinstance(index[0], Text) and index[0].text in ("@", "*"):
        return index[0].text
    return ""


def has_tilde(word: Word, assigned: bool = False) -> bool:
    """Whether bash replaces a `~` by a home."""
    first = word[0] if word else None
    if isinstance(first, Text) and not first.quoted and first.text.startswith("~"):
        return True
    return any(
        isinstance(part, Text) and not part.quoted and (":~" in part.text or "=~" in part.text)
        for part in word
        if assigned or part is first
    )


def has_braces(word: Word) -> bool:
    """Whether bash makes several words of `{a,b}` or `{1..3}`."""
    bare = "".join(part.text if isinstance(part, Text) and not part.quoted else "_" for part in word)
    return "{" in bare and bool(_BRACES.search(bare))


def stripped(value: str, pattern: re.Pattern[str], operator: str) -> str:
    """The value without what `#`, `##`, `%` or `%%` takes away."""
    places = range(len(value) + 1)
    if operator[0] == "#":
        ends = [at for at in places if pattern.fullmatch(value[:at])]
        return value[ends[-1 if operator == "##" else 0] :] if ends else value
    starts = [at for at in places if pattern.fullmatch(value[at:])]
    return value[: starts[0 if operator == "%%" else -1]] if starts else value


def halves(argument: Word) -> tuple[Word, Word]:
    """What is replaced, and by what: the parts before and behind the first bare slash."""
    for place, part in enumerate(argument):
        if isinstance(part, Text) and not part.quoted and "/" in part.text:
            before, _, behind = part.text.partition("/")
            return (*argument[:place], Text(before, False)), (Text(behind, False), *argument[place + 1 :])
    return argument, ()
