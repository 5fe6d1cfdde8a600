"""The variables of a script during its reading, and the reasons for unknown values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from isobatch.errors import InputError
from isobatch.tools.shells.tree import Command

Value = str | tuple[str, ...] | None
"""A text, an array, or None where it is known that nothing is set. Unknown characters stand in texts as one
mark each.
"""

Outcome = tuple[bool | None, str]
"""Whether a command succeeded (None: only the run knows), and what it ends: nothing, or `exit`, `return`,
`break`, `continue`.
"""

ALWAYS_SET = {
    "PWD", "OLDPWD", "HOME", "USER", "PATH", "SHELL", "IFS", "RANDOM", "SECONDS", "LINENO", "HOSTNAME",
    "HOSTTYPE", "OSTYPE", "MACHTYPE",
    "UID", "EUID", "PPID", "BASH", "BASH_VERSION", "BASH_SOURCE", "BASH_VERSINFO", "BASHPID", "BASH_LINENO",
    "FUNCNAME", "EPOCHSECONDS",
    "EPOCHREALTIME", "SHLVL", "SHELLOPTS", "BASHOPTS", "PIPESTATUS", "DIRSTACK", "GROUPS", "OPTIND",
    "OPTERR", "SRANDOM", "BASH_COMMAND",
    "BASH_SUBSHELL", "LANG", "TERM", "PS4", "_", "BASH_ARGV", "BASH_ARGC", "BASH_ARGV0", "BASH_REMATCH",
    "COMP_WORDBREAKS",
}  # fmt: skip
"""Variables that bash or the system gives a value."""

FIRST_MARK = chr(0xF0000)
_MOST_MARKS = 0xFFFD


class Origin(NamedTuple):
    """Why something is not known.

    Attributes:
        source: as the script has it: `$SLURM_NNODES`.
        why: what follows it in a sentence: `which is not set in this file`.
    """

    source: str
    why: str


@dataclass
class Shell:
    """Variables and functions. The script's own environment is not known: a name that is not here may have
    any value.

    Attributes:
        arguments: `$1` and those after it; None where they are not known.
        local: what the local variables of a function had before it, and whether they were exported; None
            outside of one.
        outer: names of the local variables of the functions that called this one.
        functions: None is one of which only the run knows what it does.
        loops: how many of them `break` may leave.
        errexit: whether `set -e` ends the script where a command fails.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Command | None] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    local: dict[str, Any] | None = None
    outer: frozenset[str] = frozenset()
    loops: int = 0
    errexit: bool = False

    def copy(self) -> Shell:
        """Returns an independent copy."""
        copy = replace(self, variables={**self.variables}, functions={**self.functions})
        copy.exported = {*self.exported}
        copy.local = None if self.local is None else {**self.local}
        return copy

    def apart(self) -> Shell:
        """Another one, of a subshell: no loop can be left in it."""
        return replace(self.copy(), loops=0)

    def check(self, name: str) -> None:
        """Raises an InputError for text not usable as a variable's name."""
        if not name.isidentifier() or not name.isascii() or name == "IFS":
            raise InputError(f"{name} is no name of a variable that is read")

    def set(self, name: str, value: Value) -> None:
        """Sets a variable, or the first value of an array to a text; raises InputError if bash refuses it."""
        self.check(name)
        array = self.variables.get(name)
        if isinstance(value, str) and isinstance(array, tuple):
            # A first value of unknown length may be none or several.
            value = (value, *array[bool(array) and not is_several(array[0]) :])
        if name not in ALWAYS_SET:
            self.variables[name] = value

    def declare_local(self, name: str) -> None:
        """Makes a variable local to the function, without a value; a local variable keeps its own."""
        self.check(name)
        if self.local is not None and name not in self.local:
            self.local[name] = (self.variables.get(name, ...), name in self.exported)
            self.set(name, None)

    def leave(self, before: Shell) -> None:
        """Leaves a function: its arguments and its variables are again what they were."""
        for name, (value, exported) in (self.local or {}).items():
            self.variables[name] = value
            if value is ...:
                del self.variables[name]
            self.exported = self.exported | {name} if exported else self.exported - {name}
        self.arguments, self.local = before.arguments, before.local
        self.outer, self.loops = before.outer, before.loops

    def adopt(self, source: Shell) -> None:
        """Takes over the state of another one."""
        vars(self).update(vars(source))

    def child(self, arguments: tuple[str, ...] | None) -> Shell:
        """Returns the state of a child process, with the exported variables."""
        visible = {name: value for name, value in self.variables.items() if name in self.exported}
        plain: dict[str, Value] = {
            name: value if isinstance(value, str) else None for name, value in visible.items()
        }
        return Shell(plain, set(visible), {}, arguments)


class Marks:
    """Marks for unknown characters: each is a private-use character, found in no script."""

    def __init__(self) -> None:
        self.reasons: list[Origin] = []
        self.known: dict[Origin, str] = {}

    def mark(self, source: str, why: str) -> str:
        """Returns the mark of a reason."""
        reason = Origin(self.shown(source), self.shown(why))
        if reason not in self.known:
            number = min(len(self.reasons), _MOST_MARKS)
            self.reasons.append(reason)
            self.known[reason] = chr(ord(FIRST_MARK) + number)
        return self.known[reason]

    def reason(self, text: str) -> Origin | None:
        """The first reason in a text; None where all of it is known."""
        return next((self.reasons[ord(char) - ord(FIRST_MARK)] for char in text if is_mark(char)), None)

    def shown(self, text: str) -> str:
        """The text as the script's author knows it."""
        return "".join(
            self.reasons[ord(char) - ord(FIRST_MARK)].source if is_mark(char) else char for char in text
        )

    def merge(self, shell: Shell, branch: Shell, why: str) -> bool:
        """Merges two branches into the state after them, and tells whether it changes it."""
        before = shell.copy()
        if shell.local != branch.local:
            raise InputError("a local variable of some runs is not read")
        for name in {*shell.variables, *branch.variables}:
            first, second = (state.variables.get(name, ...) for state in (shell, branch))
            if first != second:
                shell.variables[name] = _common(first, second, self.mark(f"${name}", why))
        for name in {*shell.functions, *branch.functions}:
            if shell.functions.get(name) is not branch.functions.get(name):
                shell.functions[name] = None
        shell.arguments = shell.arguments if shell.arguments == branch.arguments else None
        shell.exported |= branch.exported
        shell.errexit |= branch.errexit
        return shell != before


def is_mark(char: str) -> bool:
    """Tells whether a character stands for something unknown."""
    return char >= FIRST_MARK


def is_known(text: str) -> bool:
    """Whether a text has no mark."""
    return not text or max(text) < FIRST_MARK


def is_several(text: str) -> bool:
    """Tells whether a word of marks alone may be none, or several."""
    return text != "" and min(text) >= FIRST_MARK


def _common(first: object, second: object, mark: str) -> Value:
    """Merges the values of a variable after two branches; if one adds words, the common ones and a mark."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        pairs = zip(first, second, strict=False)
        same = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(first), len(second)))
        return first[:same] if first[same - 1 : same] == (mark,) else (*first[:same], mark)
    if isinstance(first, str) and isinstance(second, str):
        short, long = sorted((first, second), key=len)
        rest = long[len(short) :]
        if short and long.startswith(short) and (short[-1].isspace() or rest[0].isspace()):
            return short if short.endswith(f" {mark}") else f"{short} {mark}"
    return mark
