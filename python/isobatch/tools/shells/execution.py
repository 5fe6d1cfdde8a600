"""Follows a script from its first line to its last, as bash would, but starts nothing: each command is written down with the words that
it would get. Where only the run knows which way it goes, both are followed, and what differs behind them is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.shells import builtins
from isobatch.tools.shells.branches import Branches
from isobatch.tools.shells.conditions import of_condition
from isobatch.tools.shells.pieces import ALWAYS_SET
from isobatch.tools.shells.simple import DECLARES
from isobatch.tools.shells.state import LAUNCHERS, Launch, Outcome, Shell, is_known, is_mark, merged
from isobatch.tools.shells.syntax import document_word, parse
from isobatch.tools.shells.tree import (
    Assignment,
    Block,
    Chain,
    Choice,
    Command,
    Computed,
    Condition,
    Function,
    Grouping,
    Output,
    Pipeline,
    Repetition,
    Selection,
    Simple,
    Text,
)

MAX_COMMANDS = 20_000
MAX_DEPTH = 40
_SHELLS = ("bash", "sh", "zsh", "dash")


class Execution(Branches):
    """Follows one script."""

    def __init__(self) -> None:
        super().__init__()
        self.locals: list[dict[str, Any]] = []
        self.count = self.depth = self.line = 0

    def run(self, text: str, shell: Shell, line: int = 1) -> Outcome:
        """Follows a text of commands.

        Raises:
            InputError: it cannot be read, or goes on and on.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"line {self.line}: commands call each other more than {MAX_DEPTH} deep")
        found = self.block(shell, parse(text, line))
        self.depth -= 1
        return found

    def block(self, shell: Shell, block: Block) -> Outcome:
        """Commands one after the other."""
        status: bool | None = True
        for chain in block:
            status, flow = self._chain(shell, chain)
            if not flow and status is False and shell.stops and not self.asked and _may_stop(chain):
                flow = "exit"
            if flow:
                return status, flow
        return status, ""

    def _chain(self, shell: Shell, chain: Chain) -> Outcome:
        if chain.background:
            self._chain(shell.copy(), chain._replace(background=False))
            return True, ""
        status: bool | None = True
        for place, (operator, pipeline) in enumerate(chain.items):
            last = place == len(chain.items) - 1
            if operator and status is None:
                status = self.maybe(shell, operator, pipeline, chain, last)
            elif not operator or status == (operator == "&&"):
                status, flow = self.pipeline(shell, pipeline, last)
                if flow:
                    return status, flow
        return status, ""

    def pipeline(self, shell: Shell, pipeline: Pipeline, last: bool) -> Outcome:
        """Commands joined by `|`; Args: last: of its chain."""
        self.asked += not last or pipeline.negated
        try:
            if len(pipeline.commands) > 1:
                for command in pipeline.commands:
                    self._command(shell.copy(), command)
                return None, ""
            status, flow = self._command(shell, pipeline.commands[0])
        finally:
            self.asked -= not last or pipeline.negated
        return (not status if pipeline.negated and status is not None else status), flow

    def _command(self, shell: Shell, command: Command) -> Outcome:
        self.count += 1
        if self.count > MAX_COMMANDS:
            raise InputError(f"line {self.line}: more than {MAX_COMMANDS:,} commands: a loop without an end?")
        match command:
            case Simple():
                return self._simple(shell, command)
            case Choice():
                return self.choice(shell, command, 0)
            case Selection():
                return self.selection(shell, command, 0)
            case Repetition():
                return self.loop(shell, command)
            case Grouping():
                if not command.apart:
                    return self.block(shell, command.body)
                return self.block(shell.copy(), command.body)[0], ""
            case Condition():
                return of_condition(self.expansion, shell, command), ""
            case Computed():
                value = self.expansion.computed(shell, command.inside, "(( … ))")
                return (value != "0" if is_known(value) else None), ""
            case Function():
                shell.functions[command.name] = command.body
        return True, ""

    def _simple(self, shell: Shell, command: Simple) -> Outcome:
        self.line = command.line
        try:
            return self._expanded(shell, command)
        except InputError as error:
            raise (
                error
                if error.message.startswith("line ")
                else InputError(f"line {command.line}: {error.message}")
            ) from None

    def _expanded(self, shell: Shell, command: Simple) -> Outcome:
        first = command.words[0] if command.words else None
        if first in [(Text(name, False),) for name in DECLARES]:
            return builtins.declare(self, shell, command)
        if command.document is not None:
            self.expansion.text(shell, document_word(command.document, command.line))
        words = [field for word in command.words for field in self.expansion.fields(shell, word)]  # type: ignore[arg-type]
        if not words:
            for assignment in command.assignments:
                self.assign(shell, assignment)
            ran = any(isinstance(part, Output) for it in command.assignments for part in it.value)
            return (None if ran or command.words else True), ""
        if words[0] in DECLARES:  # a variable had its name, or nothing before it
            plain = tuple((Text(word, True),) for word in words)
            return builtins.declare(self, shell, command._replace(words=plain))
        if words[0] in shell.functions:
            return self._call(shell, command, words)
        if (known := builtins.BUILTINS.get(words[0])) is not None:
            with self._beside(shell, command.assignments):
                return known(self, shell, words, command)
        if not is_known(words[0]):
            self.unread.append(f"line {command.line}: what {self.marks.shown(words[0])} runs is not known")
        self.record(shell, words, command)
        return None, ""

    @contextmanager
    def _beside(self, shell: Shell, assignments: tuple[Assignment, ...]) -> Iterator[None]:
        """`A=1 command`: the variable has the value while the command runs."""
        held = {it.name: shell.variables.get(it.name, ...) for it in assignments}
        exported = set(shell.exported)
        for assignment in assignments:
            self.assign(shell, assignment)
            shell.exported.add(assignment.name)
        yield
        for name, value in held.items():
            if value is ...:
                shell.variables.pop(name, None)
            else:
                shell.variables[name] = value
        if held:
            shell.exported = exported

    def _call(self, shell: Shell, command: Simple, words: list[str]) -> Outcome:
        """Calls a function: its arguments are its own, and so are its local variables."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"line {command.line}: functions call each other more than {MAX_DEPTH} deep")
        held, shell.arguments = shell.arguments, tuple(words[1:])
        loops, self.loops = self.loops, 0
        self.returned.append([])
        self.locals.append({})
        with self._beside(shell, command.assignments):
            status, flow = self._command(shell, shell.functions[words[0]])
            for other in self.returned.pop():
                why = f"which depends on the way through {words[0]} (line {command.line})"
                shell.adopt(merged(shell, other, self.marks, why))
                status = None
            for name, value in self.locals.pop().items():
                if value is ...:
                    shell.variables.pop(name, None)
                else:
                    shell.variables[name] = value
        shell.arguments, self.loops = held, loops
        self.depth -= 1
        return status, "" if flow == "return" else flow

    def assign(self, shell: Shell, assignment: Assignment) -> None:
        """Sets a variable."""
        name = assignment.name
        if name == "IFS":
            shell.splits = False
        if name in ALWAYS_SET:
            return
        value = builtins.assigned_value(self.expansion, shell, assignment)
        if name in shell.fixed:
            value = self.marks.mark(f"${name}", "which has a type of its own")
        shell.variables[name] = value
        if "*" in shell.exported:
            shell.exported.add(name)

    def record(self, shell: Shell, words: list[str], command: Simple) -> None:
        """Writes a command down; of `bash -c "…"` those in it, which have its arguments."""
        inner = self._inner(shell, words, command)
        if inner is None or all(map(is_mark, inner[0])):
            environment = self._environment(shell, command)
            self.launches.append(Launch(command.line, tuple(words), tuple(self.when), environment))
            return
        text, arguments = inner
        child = shell.child(arguments, self.marks)
        for assignment in command.assignments:
            self.assign(child, assignment)
        held, self.returned, self.locals = (self.returned, self.locals), [], []
        self.run(text, child, command.line)
        self.returned, self.locals = held

    def _environment(self, shell: Shell, command: Simple) -> tuple[tuple[str, str], ...]:
        """The launchers' variables that a command sees: exported, or set for it alone."""
        names = {it.name for it in command.assignments} | shell.exported
        if names.isdisjoint(LAUNCHERS):
            return ()
        own = shell.copy()
        for assignment in command.assignments:
            self.assign(own, assignment)
        seen = {name: own.variables.get(name) for name in LAUNCHERS if name in names}
        return tuple((name, value) for name, value in seen.items() if isinstance(value, str))

    def _inner(self, shell: Shell, words: list[str], command: Simple) -> tuple[str, tuple[str, ...]] | None:
        """The script inside a command, and its arguments: of `bash -c TEXT`, or in a here-document of `bash` and `sbatch`."""
        for place, word in enumerate(words[:-1]):
            if PurePosixPath(word).name in _SHELLS:
                rest = words[place + 1 :]
                options = [it for it in rest if it.startswith("-")]
                if (
                    rest
                    and options
                    and rest[0] == options[0]
                    and "c" in rest[0]
                    and not rest[0].startswith("--")
                    and len(rest) > 1
                ):
                    return rest[1], tuple(rest[3:])
        takes = words[0] == "sbatch" or PurePosixPath(words[-1]).name in _SHELLS
        if command.document is None or not takes:
            return None
        return self.expansion.text(shell, document_word(command.document, command.line)), ()


def _may_stop(chain: Chain) -> bool:
    """Whether `set -e` ends the script where this fails."""
    pipeline = chain.items[-1][1]
    return not pipeline.negated and isinstance(pipeline.commands[-1], Simple | Condition | Computed)
