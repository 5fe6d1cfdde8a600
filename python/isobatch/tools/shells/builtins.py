"""Commands of bash itself that change what follows: `export`, `set`, `shift`, `eval`, `read`, `exit` …"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from isobatch.errors import InputError
from isobatch.tools.shells.conditions import tested
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.pieces import ALWAYS_SET
from isobatch.tools.shells.state import Marks, Outcome, Shell, Value, is_known, is_mark, is_several
from isobatch.tools.shells.tree import Assignment, Command, Function, Repetition, Simple, Text

ANYTHING = "*"
"""In the place of names: what is set is not known."""
_TYPED = set("iAnluc")
"""Options of `declare` under which an assignment is no plain text."""
_SET_OPTIONS = set("abefhkmnoptuvxBCEHPT")
_READERS = ("read", "mapfile", "readarray", "getopts", "let", "unset", "printf")


class Follower(Protocol):
    """Who follows the script, as these commands need it: `execution.Execution`."""

    marks: Marks
    expansion: Expansion
    unread: list[str]
    locals: list[dict[str, Any]]
    line: int
    loops: int

    def assign(self, shell: Shell, assignment: Assignment) -> None:
        """Sets a variable."""

    def record(self, shell: Shell, words: list[str], command: Simple) -> None:
        """Writes a command down."""

    def run(self, text: str, shell: Shell, line: int = 1) -> Outcome:
        """Follows a text of commands."""


def declare(execution: Follower, shell: Shell, command: Simple) -> Outcome:
    """`export`, `declare`, `typeset`, `local`, `readonly`."""
    for assignment in command.assignments:
        execution.assign(shell.copy(), assignment)
    name = command.words[0][0].text  # type: ignore[union-attr]
    if name == "local" and not execution.locals:
        raise InputError("local outside of a function")
    options, names = "", list[str]()
    is_local = name == "local" or (name in ("declare", "typeset") and bool(execution.locals))
    if any(isinstance(word, Assignment) and word.place is not None for word in command.words):
        raise InputError(f"{name} NAME[…]= is not read")
    for word in command.words[1:]:
        fields = [word.name] if isinstance(word, Assignment) else execution.expansion.fields(shell, word)
        for field in fields:
            if not isinstance(word, Assignment) and field.startswith(("-", "+")):
                if not field[1:].isalpha():
                    raise InputError(f"{name} {field} is not read")
                options += field
                continue
            given, equals, value = field.partition("=")
            if is_local and "g" not in options and execution.locals:
                execution.locals[-1].setdefault(given, shell.variables.get(given, ...))
                shell.variables[given] = None
            if isinstance(word, Assignment):
                execution.assign(shell, word)
            elif equals:
                plain = Assignment(given.rstrip("+"), None, given.endswith("+"), (Text(value, True),), False)
                execution.assign(shell, plain)
            names.append(given.rstrip("+"))
    if len(set(names)) < len(names):
        raise InputError(f"{name} has a name twice")
    for each in names:
        _mark_declared(execution, shell, name, options, each)
    return all(each.isidentifier() or not is_known(each) for each in names), ""


def _mark_declared(execution: Follower, shell: Shell, command: str, options: str, name: str) -> None:
    if command == "export" and "n" in options:
        shell.exported.discard(name)
    elif command == "export" or "x" in options:
        shell.exported.add(name)
    if command == "readonly" or (command != "export" and "r" in options):
        shell.fixed.add(name)
    if command != "export" and set(options) & _TYPED:
        shell.fixed.add(name)
        shell.variables[name] = execution.marks.mark(f"${name}", "which has a type of its own")
    if not is_known(name):
        execution.unread.append(
            f"line {execution.line}: what {command} {execution.marks.shown(name)} sets is not known"
        )


def assigned_value(expansion: Expansion, shell: Shell, assignment: Assignment) -> Value:
    """What an assignment leaves in its variable."""
    name = assignment.name
    held = shell.variables.get(name)
    if assignment.array:
        if any(_has_index(word) for word in assignment.value) or assignment.place is not None:
            return expansion.marks.mark(f"${name}", "which has indices of its own")
        fields = tuple(field for word in assignment.value for field in expansion.fields(shell, word))  # type: ignore[arg-type]
        before = (held,) if isinstance(held, str) else held or ()
        return (*before, *fields) if assignment.append else fields
    text = expansion.text(shell, assignment.value)  # type: ignore[arg-type]
    if assignment.place is not None:
        return _with_index(expansion, shell, assignment, held, text)
    if not assignment.append:
        return (text, *held[1:]) if isinstance(held, tuple) else text
    if name not in shell.variables:
        return expansion.marks.mark(f"${name}", "which is not set in this file") + text
    if isinstance(held, tuple):
        return ((held[0] if held else "") + text, *held[1:])
    return (held or "") + text


def _with_index(expansion: Expansion, shell: Shell, assignment: Assignment, held: Value, text: str) -> Value:
    place = expansion.computed(shell, assignment.place or (), assignment.name)
    listed = (held,) if isinstance(held, str) else held or ()
    if not place.isdecimal() or not place.isascii() or int(place) > len(listed):
        return expansion.marks.mark(f"${assignment.name}", "which has indices of its own")
    before = listed[int(place)] if assignment.append and int(place) < len(listed) else ""
    return (*listed[: int(place)], before + text, *listed[int(place) + 1 :])


def _has_index(word: Any) -> bool:
    first = word[0]
    return isinstance(first, Text) and not first.quoted and first.text.startswith("[")


def _unset(execution: Follower, shell: Shell, words: list[str], _: Simple) -> Outcome:
    for word in words[1:]:
        if "f" in "".join(it for it in words[1:] if it.startswith("-")):
            shell.functions.pop(word, None)
        elif word.isidentifier() and word not in shell.fixed:
            if word == "IFS":
                shell.splits = True
            if word not in shell.variables:
                shell.functions.pop(word, None)
            shell.variables[word] = None
        elif not word.startswith("-"):
            name = word.partition("[")[0]
            shell.variables[name] = execution.marks.mark(f"${name}", "which was unset in part")
    return True, ""


def _set(_execution: Follower, shell: Shell, words: list[str], command: Simple) -> Outcome:
    rest = words[1:]
    while rest and rest[0][:1] in ("-", "+") and len(rest[0]) > 1 and rest[0] != "--":
        option = rest.pop(0)
        if not set(option[1:]) <= _SET_OPTIONS:
            raise InputError(f"line {command.line}: {' '.join(words)} is not read")
        on = option[0] == "-"
        if "o" in option and rest:
            option += {"allexport": "a", "errexit": "e", "noexec": "n"}.get(rest.pop(0), "")
        if "e" in option[1:]:
            shell.stops = on
        if "a" in option[1:]:
            (shell.exported.add if on else shell.exported.discard)("*")
        if on and set("nk") & set(option):
            raise InputError(f"line {command.line}: {' '.join(words)} is not read")
    if rest and rest[0] in ("-", "--"):
        rest.pop(0)
        shell.arguments = tuple(rest)
    elif rest:
        shell.arguments = tuple(rest)
    if not all(map(is_known, rest)):
        shell.arguments = None
    return True, ""


def _shift(_execution: Follower, shell: Shell, words: list[str], _: Simple) -> Outcome:
    by = words[1] if len(words) > 1 else "1"
    if shell.arguments is None or not by.isdecimal():
        shell.arguments = None
        return None, ""
    if any(map(is_several, shell.arguments[: int(by)])):
        shell.arguments = None
        return None, ""
    if int(by) <= len(shell.arguments):
        shell.arguments = shell.arguments[int(by) :]
        return True, ""
    return False, ""


def _eval(execution: Follower, shell: Shell, words: list[str], command: Simple) -> Outcome:
    text = " ".join(words[1:])
    if is_mark(text.lstrip()[:1] or "x"):
        execution.record(shell, text.split() or [text], command)
        execution.unread.append(
            f"line {command.line}: what eval {execution.marks.shown(text)} sets is not known"
        )
        return None, ""
    return execution.run(text, shell, command.line)


def _source(execution: Follower, _shell: Shell, words: list[str], command: Simple) -> Outcome:
    execution.unread.append(
        f"line {command.line}: {execution.marks.shown(' '.join(words))} is another file, and not read: what it sets is not known"
    )
    return None, ""


def _read(execution: Follower, shell: Shell, words: list[str], command: Simple) -> Outcome:
    if words[0] == "printf" and words[1:2] != ["-v"]:
        return True, ""
    for name in _read_names(words):
        shell.variables[name] = execution.marks.mark(
            f"${name}", f"which {words[0]} sets in the run (line {command.line})"
        )
    return None, ""


def _read_names(words: list[str]) -> Iterator[str]:
    if words[0] == "let":
        yield from (word.partition("=")[0].strip("+-*/%&|^<> ") for word in words[1:])
        return
    yield from (word for word in words[1:] if word.isidentifier() and word not in ALWAYS_SET)
    yield from {"read": ("REPLY",), "getopts": ("OPTARG",)}.get(words[0], ("MAPFILE",))


def _end(flow: str) -> Callable[..., Outcome]:
    def ends(execution: Follower, _shell: Shell, words: list[str], command: Simple) -> Outcome:
        if flow in ("break", "continue") and words[1:]:
            raise InputError(f"line {command.line}: {' '.join(words)} is not read: out of one loop at a time")
        if len(words) > 2:
            raise InputError(f"line {command.line}: {' '.join(words)} has too many arguments")
        if flow in ("break", "continue") and not execution.loops:
            return True, ""
        known = {(): True, ("0",): True}.get(
            tuple(words[1:]), None if not all(map(is_known, words)) else False
        )
        return known, flow

    return ends


def _exec(execution: Follower, shell: Shell, words: list[str], command: Simple) -> Outcome:
    if len(words) == 1:
        return True, ""
    execution.record(shell, words[1:], command)
    return None, "exit"


def _test(_execution: Follower, _shell: Shell, words: list[str], _command: Simple) -> Outcome:
    if words[0] == "[":
        if not is_known(words[-1]):
            return None, ""
        return (tested(words[1:-1]) if words[-1] == "]" else False), ""
    return tested(words[1:]), ""


def _command(execution: Follower, shell: Shell, words: list[str], command: Simple) -> Outcome:
    """`command NAME …`, `builtin NAME …`."""
    if len(words) == 1 or words[1].startswith("-"):
        return None, ""
    known = BUILTINS.get(words[1])
    if known is not None:
        return known(execution, shell, words[1:], command)
    if words[0] == "command":
        execution.record(shell, words[1:], command)
    return None, ""


def _shopt(_execution: Follower, _shell: Shell, words: list[str], command: Simple) -> Outcome:
    if set(words) & {"expand_aliases", "lastpipe", "extglob"} and "-s" in words:
        raise InputError(f"line {command.line}: {' '.join(words)} is not read")
    return None, ""


def _steady(status: bool) -> Callable[..., Outcome]:
    return lambda *_: (status, "")


BUILTINS: dict[str, Callable[[Follower, Shell, list[str], Simple], Outcome]] = {
    **dict.fromkeys(("true", ":", "echo"), _steady(True)),
    "false": _steady(False),
    **dict.fromkeys(("[", "test"), _test),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys([name for name in _READERS if name != "unset"], _read),
    **{flow: _end(flow) for flow in ("exit", "return", "break", "continue")},
    **dict.fromkeys(("command", "builtin"), _command),
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "eval": _eval,
    "exec": _exec,
    "shopt": _shopt,
}


def assigned(node: Any, functions: Mapping[str, Command], seen: frozenset[str] = frozenset()) -> set[str]:
    """Names that commands may set."""
    names: set[str] = set()
    if isinstance(node, Simple):
        names |= {it.name for it in (*node.assignments, *node.words) if isinstance(it, Assignment)}
        texts = [_plain(word) for word in node.words]
        if texts and texts[0] in _READERS:
            names |= set(_read_names(texts))
        if texts and texts[0] in ("eval", "set", "shift", "export", "declare", "local"):
            names.add(ANYTHING)
        if texts and texts[0] in functions and texts[0] not in seen:
            names |= assigned(functions[texts[0]], functions, seen | {texts[0]})
    elif isinstance(node, Repetition) and node.name:
        names.add(node.name)
    if isinstance(node, Function):
        return names | assigned(node.body, functions, seen)
    if isinstance(node, tuple):
        for item in node:
            if isinstance(item, tuple):
                names |= assigned(item, functions, seen)
    return names - ALWAYS_SET


def _plain(word: Any) -> str:
    is_plain = not isinstance(word, Assignment) and len(word) == 1 and isinstance(word[0], Text)
    return word[0].text if is_plain else ""
