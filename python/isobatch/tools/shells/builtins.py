"""Commands of bash itself that change what follows: `export`, `set`, `shift`, `read` …"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import EllipsisType

from isobatch.errors import InputError
from isobatch.tools.shells.conditions import evaluate_test
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.state import ALWAYS_SET, Shell, Value, is_several
from isobatch.tools.shells.tree import Assignment, Document, Simple, Text

Builtin = Callable[[Expansion, Shell, list[str]], bool | None]


def declare(expansion: Expansion, shell: Shell, command: Simple) -> None:
    """Follows `export`, `local` and `readonly`. All words are expanded before the first is set."""
    kind = command.words[0][0].text  # type: ignore[union-attr]
    if command.assignments or command.may_fail or (kind == "local" and shell.local is None):
        raise InputError(f"{kind} with an assignment or a redirection, or outside of a function, is not read")
    values: list[tuple[str, Value | EllipsisType]] = []
    for word in command.words[1:]:
        if isinstance(word, Assignment):
            if word.append and kind == "local":
                raise InputError("local with += is not read")
            values.append((word.name, expansion.assigned(shell, word)))
            continue
        for field in expansion.fields(shell, word):
            name, equals, value = field.partition("=")
            values.append((name, value if equals else ...))
    if len({name for name, _ in values}) < len(values):
        raise InputError(f"{kind} with a name twice is not read")
    for name, new in values:
        refuse_name(expansion, shell, name)
        if kind == "local" and shell.local is not None:
            shell.local.setdefault(name, shell.variables.get(name, ...))
            shell.variables[name] = None
        else:
            (shell.exported if kind == "export" else shell.constant).add(name)
        if not isinstance(new, EllipsisType) and name not in ALWAYS_SET:
            shell.variables[name] = new


def refuse_name(expansion: Expansion, shell: Shell, name: str) -> None:
    """Raises an InputError for what is no variable's name, or another variable than others."""
    if not name.isidentifier() or not name.isascii() or name == "IFS" or name in shell.constant:
        raise InputError(f"{expansion.marks.shown(name)} is readonly, or no name of a variable that is read")


def assign(expansion: Expansion, shell: Shell, assignment: Assignment) -> None:
    """Sets a variable."""
    value = expansion.assigned(shell, assignment)
    refuse_name(expansion, shell, assignment.name)
    if assignment.name not in ALWAYS_SET:
        shell.variables[assignment.name] = value


def _unset(expansion: Expansion, shell: Shell, words: list[str]) -> bool:
    for name in words[1:]:
        refuse_name(expansion, shell, name)
        if name in shell.functions or name in ALWAYS_SET:
            raise InputError(f"unset {name} is not read")
        shell.variables[name] = None
        shell.exported.discard(name)
    return True


def _set(expansion: Expansion, _: Shell, words: list[str]) -> bool:
    """`-e`, `-u`, `-x`, `-o pipefail`; other options change how bash reads, or the arguments. That `-e` ends nothing is taken for granted."""
    names = ("pipefail", "errexit", "nounset", "xtrace")
    if len(words) == 1 or not all(re.fullmatch("[-+][euxo]+", word) or word in names for word in words[1:]):
        raise InputError(f"{expansion.marks.shown(' '.join(words))} is not read")
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
    """`read` sets what is known only in the run."""
    names = [word for word in words[1:] if word and not word.startswith("-")]
    for name in (*names, "REPLY"):
        refuse_name(expansion, shell, name)
        shell.variables[name] = expansion.marks.mark(f"${name}", "which read sets in the run")


def read_document(expansion: Expansion, shell: Shell, document: Document, name: str) -> None:
    """Follows `read -r -d '' NAME`, which sets a variable to a whole here-document."""
    text = expansion.text(shell, document.word).strip(" \t\n")
    assign(expansion, shell, Assignment(name, False, ((Text(text, True),),), False))


def _printf(_: Expansion, __: Shell, words: list[str]) -> None:
    if words[1:2] == ["-v"] or is_several("".join(words[1:2])):
        raise InputError("printf -v is not read")


def _test(_: Expansion, __: Shell, words: list[str]) -> bool | None:
    if words[0] == "test":
        return evaluate_test(words[1:])
    return evaluate_test(words[1:-1]) if words[-1] == "]" else None


def _refuse(_: Expansion, __: Shell, words: list[str]) -> None:
    raise InputError(f"{words[0]} is not read")


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("true", ":", "echo"), lambda *_: True),
    "false": lambda *_: False,
    **dict.fromkeys(("[", "test"), _test),
    **dict.fromkeys(("declare", "typeset", "let", "mapfile", "readarray", "getopts", "shopt"), _refuse),
    **dict.fromkeys(("break", "continue", "alias", "unalias", "enable", "builtin"), _refuse),
    "printf": _printf,
    "read": _read,
    "unset": _unset,
    "set": _set,
    "shift": _shift,
}
