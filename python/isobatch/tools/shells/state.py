"""The variables of a script while it is read, and what is not known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from isobatch.tools.shells.tree import Command

Value = str | tuple[str, ...] | None
"""A text, an array, or None where it is known that nothing is set. Unknown characters stand in texts as one mark each."""

Outcome = tuple[bool | None, str]
"""Whether a command succeeded (None: only the run knows), and what it ends: nothing, or `exit`, `return`, `break`, `continue`."""

LAUNCHERS = ("NPROC_PER_NODE", "NNODES")
"""Variables by which a command, ms-swift's, starts processes of its own."""

_FIRST_MARK = 0xF0000
_MOST_MARKS = 0xFFFD


class Origin(NamedTuple):
    """Why something is not known.

    Attributes:
        source: as the script has it: `$SLURM_NNODES`.
        why: what follows it in a sentence: `which is not set in this file`.
    """

    source: str
    why: str


class Launch(NamedTuple):
    """A command that the script starts.

    Attributes:
        line: in the script, of the outermost command.
        words: it and its arguments; what is not known in them is a mark.
        when: the conditions under which it runs that only the run knows.
        environment: the launchers' variables that it sees (LAUNCHERS).
    """

    line: int
    words: tuple[str, ...]
    when: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Shell:
    """Variables and functions. The script's own environment is not known: a name that is not here may have any value.

    Attributes:
        arguments: `$1` and those after it; None where they are not known.
        splits: whether words are split at blanks: no IFS was set.
        fixed: names whose assignment does more or less than to set a text: `declare -i`, `readonly`.
        stops: whether a command that fails ends the script: `set -e`.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Command] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    splits: bool = True
    fixed: set[str] = field(default_factory=set)
    stops: bool = False

    def copy(self) -> Shell:
        """Another one, which may change alone."""
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            functions=dict(self.functions),
            fixed=set(self.fixed),
        )

    def adopt(self, other: Shell) -> None:
        """Takes over the state of another one."""
        self.variables, self.exported, self.functions = other.variables, other.exported, other.functions
        self.arguments, self.splits, self.fixed, self.stops = (
            other.arguments,
            other.splits,
            other.fixed,
            other.stops,
        )

    def child(self, arguments: tuple[str, ...] | None, marks: Marks) -> Shell:
        """A process of its own, which sees what is exported."""
        hidden = {name: marks.mark(f"${name}", "which is not exported") for name in self.variables}
        seen = {name: self.variables.get(name) for name in self.exported if name in self.variables}
        plain = {name: value for name, value in seen.items() if not isinstance(value, tuple)}
        return Shell({**hidden, **plain}, set(plain), {}, arguments)


class Marks:
    """The marks of what is not known: each is a character that no script has."""

    def __init__(self) -> None:
        self.reasons: list[Origin] = []
        self.known: dict[Origin, str] = {}

    def mark(self, source: str, why: str) -> str:
        """Returns the mark of a reason."""
        reason = Origin(self.shown(source), self.shown(why))
        if reason not in self.known:
            number = min(len(self.reasons), _MOST_MARKS)
            self.reasons.append(reason)
            self.known[reason] = chr(_FIRST_MARK + number)
        return self.known[reason]

    def reason(self, text: str) -> Origin | None:
        """The first reason in a text; None where all of it is known."""
        return next((self.reasons[ord(char) - _FIRST_MARK] for char in text if is_mark(char)), None)

    def shown(self, text: str) -> str:
        """The text as the script's author knows it."""
        return "".join(
            self.reasons[ord(char) - _FIRST_MARK].source if is_mark(char) else char for char in text
        )


def is_mark(char: str) -> bool:
    """Whether a character stands for what is not known."""
    return ord(char) >= _FIRST_MARK


def is_known(text: str) -> bool:
    """Whether a text has no mark."""
    return not text or max(text) < chr(_FIRST_MARK)


def is_several(text: str) -> bool:
    """Whether a word of which nothing is known may be none, or several."""
    return text != "" and all(map(is_mark, text))


def merged(first: Shell, second: Shell, marks: Marks, why: str) -> Shell:
    """The state behind two branches of which one runs: what differs in them is not known."""
    out = first.copy()
    for name in {*first.variables, *second.variables}:
        one, two = (_held(it.variables, name) for it in (first, second))
        if one != two:
            out.variables[name] = _common(one, two, marks.mark(f"${name}", why))
    out.functions = {
        name: body for name, body in first.functions.items() if second.functions.get(name) is body
    }
    out.exported = first.exported | second.exported
    if first.arguments != second.arguments:
        out.arguments = None
    out.splits, out.stops = first.splits and second.splits, first.stops and second.stops
    out.fixed = first.fixed | second.fixed
    return out


def _common(one: object, two: object, mark: str) -> Value:
    """What two branches leave in a variable: where one only adds words to the other's, those of both and a mark."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        same = next(
            (at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]),
            min(len(one), len(two)),
        )
        return (*one[:same], mark)
    if isinstance(one, str) and isinstance(two, str):
        short, long = sorted((one, two), key=len)
        rest = long[len(short) :]
        if short and long.startswith(short) and (short[-1].isspace() or rest[0].isspace()):
            return f"{short} {mark}"
    return mark


def _held(variables: Mapping[str, Value], name: str) -> object:
    return variables.get(name, ...)
