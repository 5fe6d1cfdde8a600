"""Commands of bash itself with an effect on later ones: `export`, `set`, `shift`, `read` …"""

import re
from collections.abc import Callable
from itertools import pairwise
from types import EllipsisType

from isobatch.errors import InputError
from isobatch.tools.shells.conditions import evaluate_test
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.simple import DECLARES
from isobatch.tools.shells.state import ALWAYS_SET, Shell, Value, is_known, is_several
from isobatch.tools.shells.tree import Assignment, Simple

Builtin = Callable[[Expansion, Shell, list[str]], bool | None]


def declare(expansion: Expansion, shell: Shell, command: Simple) -> None:
    """Follows `export` and `local`. All words are expanded before the first is set."""
    kind = command.words[0][0].text  # type: ignore[union-attr]
    if kind not in ("export", "local"):
        raise InputError(f"{kind} is not read: write NAME=value")
    if command.assignments or command.files:
        raise InputError(
            f"{kind} with {'an assignment before it' if command.assignments else 'a redirection'} is not read"
        )
    if kind == "local" and shell.local is None:
        raise InputError("local outside of a function is an error of bash")
    values = list[tuple[str, Value | EllipsisType, bool]]()
    for word in command.words[1:]:
        if isinstance(word, Assignment):
            values.append((word.name, expansion.assigned(shell, word), word.append))
            continue
        for field in expansion.fields(shell, word):
            if field[:1] == "-":
                raise InputError(f"{kind} {field} is not read: give it no option")
            name, equals, value = field.partition("=")
            values.append((name, value if equals else ..., False))
    arrays = [isinstance(new, tuple) for _, new, _ in values]
    if len({name for name, _, _ in values}) < len(values) or (any(arrays) and len(arrays) > 1):
        raise InputError(f"{kind} with a name twice, or an array beside others, is not read")
    for name, new, append in values:
        if append and kind == "local":
            raise InputError("local with += is not read")
        if kind == "local":
            shell.declare_local(name)
        else:
            shell.exported.add(name)
        if isinstance(new, EllipsisType):
            shell.check(name)
        else:
            expansion.assign(shell, name, new, append)


def assign(expansion: Expansion, shell: Shell, assignment: Assignment) -> None:
    """Sets a variable."""
    value = expansion.assigned(shell, assignment)
    expansion.assign(shell, assignment.name, value, assignment.append)


def _unset(_: Expansion, shell: Shell, words: list[str]) -> bool:
    for name in words[1:]:
        if name in shell.functions or name in ALWAYS_SET:
            raise InputError(f"unset {name} is not read")
        if name in shell.outer - {*(shell.local or ())}:
            raise InputError(
                f"unset {name} is not read where {name} is local in a function that called this one"
            )
        shell.set(name, None)
        shell.exported.discard(name)
    return True


def _set(_: Expansion, shell: Shell, words: list[str]) -> bool:
    """`-e`, `-u`, `-x`, `-o pipefail`; other options change how bash reads, or the arguments. That `-e` ends
    nothing at a command of which only the run knows whether it fails is taken for granted."""
    names = ("pipefail", "errexit", "nounset", "xtrace")
    if len(words) == 1 or not all(re.fullmatch("[-+][euxo]+", word) or word in names for word in words[1:]):
        raise InputError(f"{' '.join(words)} is not read")
    for before, word in pairwise(words):
        if word == "errexit" or (word[0] in "-+" and "e" in word):
            shell.errexit = (before if word == "errexit" else word)[0] == "-"
    return True


def _shift(_: Expansion, shell: Shell, words: list[str]) -> bool | None:
    by = words[1] if len(words) > 1 else "1"
    if len(words) > 2 or not by.isdecimal():
        raise InputError("shift by other than a plain number is not read")
    if shell.arguments is None or any(map(is_several, shell.arguments[: int(by)])):
        shell.arguments = None
        return None
    if int(by) > len(shell.arguments):
        raise InputError(
            "shift of more arguments than there are is not read: under set -e it ends the script"
        )
    shell.arguments = shell.arguments[int(by) :]
    return True


def _read(expansion: Expansion, shell: Shell, words: list[str]) -> None:
    """`read` sets variables to values known only in the run."""
    names = [word for word in words[1:] if word and not word.startswith("-")]
    for name in (*names, "REPLY"):
        shell.set(name, expansion.marks.mark(f"${name}", "which read sets in the run"))


def _printf(_: Expansion, __: Shell, words: list[str]) -> None:
    if words[1:2] == ["-v"] or is_several("".join(words[1:2])):
        raise InputError("printf -v is not read")


def _test(_: Expansion, __: Shell, words: list[str]) -> bool | None:
    if words[0] == "test":
        return evaluate_test(words[1:])
    if words[-1] == "]":
        return evaluate_test(words[1:-1])
    return False if is_known(words[-1]) else None


def _refuse(_: Expansion, __: Shell, words: list[str]) -> None:
    raise InputError(f"{words[0]} is not read")


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("true", ":", "echo"), lambda *_: True),
    "false": lambda *_: False,
    **dict.fromkeys(("[", "test"), _test),
    **dict.fromkeys(("mapfile", "readarray", "getopts", "shopt"), _refuse),
    **dict.fromkeys(("alias", "unalias", "enable", "builtin", "let"), _refuse),
    "printf": _printf,
    "read": _read,
    "unset": _unset,
    "set": _set,
    "shift": _shift,
}
LEAVES = ("exit", "return", "break", "continue")
NAMES = {*BUILTINS, *LEAVES, *DECLARES, "source", ".", "eval", "exec"}
"""Bash's own commands; those that are not in BUILTINS change what is followed next (see Execution)."""
