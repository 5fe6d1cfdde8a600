"""Follows a script from its first line to its last, as bash would, but starts nothing: each command is written down with the words that
it would get. Where only the run knows which way it goes, both are followed, and what differs behind them is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from isobatch.errors import InputError
from isobatch.tools.shells import builtins
from isobatch.tools.shells.conditions import of_condition
from isobatch.tools.shells.expansion import ALWAYS_SET, Expansion
from isobatch.tools.shells.simple import DECLARES
from isobatch.tools.shells.state import Marks, Outcome, Shell, is_known, is_mark, merged
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
    Group,
    Loop,
    Output,
    Pipeline,
    Selection,
    Simple,
    Text,
)

MAX_COMMANDS = 20_000
MAX_ROUNDS = 200
MAX_DEPTH = 40
_SHELLS = ("bash", "sh", "zsh", "dash")


class Launch(NamedTuple):
    """A command that the script starts.

    Attributes:
        line: in the script, of the outermost command.
        words: it and its arguments; what is not known in them is a mark.
        when: the conditions under which it runs that only the run knows.
    """

    line: int
    words: tuple[str, ...]
    when: tuple[str, ...]


class Execution:
    """Follows one script.

    Attributes:
        launches: the commands, in their order.
        unread: what is not read, in words.
        goes_on: whether it was taken for granted that the script does not end somewhere, as in `cd data || exit 1`.
    """

    def __init__(self) -> None:
        self.marks = Marks()
        self.expansion = Expansion(self.marks)
        self.launches: list[Launch] = []
        self.unread: list[str] = []
        self.when: list[str] = []
        self.returned: list[list[Shell]] = []
        self.locals: list[dict[str, Any]] = []
        self.loses_its_way = False
        self.goes_on = False
        self.loops = 0
        self.asked = self.count = self.depth = 0
        self.line = 0

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
                status = self._maybe(shell, operator, pipeline, chain, last)
            elif not operator or status == (operator == "&&"):
                status, flow = self._pipeline(shell, pipeline, last)
                if flow:
                    return status, flow
        return status, ""

    def _maybe(
        self, shell: Shell, operator: str, pipeline: Pipeline, chain: Chain, last: bool
    ) -> bool | None:
        """The right side of `&&` or `||` where only the run knows whether it runs. One that ends the script did not run: we go on."""
        other = shell.copy()
        with self._under(f"{chain.source} (line {chain.line})"):
            _, flow = self._pipeline(other, pipeline, last)
        if flow:
            self._leave(other, flow)
            return operator == "||"
        shell.adopt(merged(shell, other, self.marks, f"which depends on {chain.source} (line {chain.line})"))
        return None

    def _leave(self, shell: Shell, flow: str) -> None:
        """A branch that does not go on; what it leaves at its function's end is kept."""
        if flow == "return" and self.returned:
            self.returned[-1].append(shell)
        if flow == "exit":
            self.goes_on = True
        if flow in ("break", "continue"):
            self.loses_its_way = True

    @contextmanager
    def _under(self, condition: str) -> Iterator[None]:
        self.when.append(self.marks.shown(condition))
        yield
        self.when.pop()

    def _pipeline(self, shell: Shell, pipeline: Pipeline, last: bool) -> Outcome:
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
                return self._choice(shell, command, 0)
            case Selection():
                return self._selection(shell, command, 0)
            case Loop():
                return self._loop(shell, command)
            case Group():
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

    def _choice(self, shell: Shell, choice: Choice, number: int) -> Outcome:
        if number == len(choice.branches):
            return True, ""
        condition, body, source = choice.branches[number]
        if condition is None:
            return self.block(shell, body)
        self.asked += 1
        status, flow = self.block(shell, condition)
        self.asked -= 1
        if flow:
            return status, flow
        if status is True:
            return self.block(shell, body)
        if status is False:
            return self._choice(shell, choice, number + 1)
        place = f"{source} (line {choice.line})"
        one, two = shell.copy(), shell.copy()
        with self._under(f"if {place}"):
            first = self.block(one, body)[1]
        with self._under(f"if not {place}"):
            second = self._choice(two, choice, number + 1)[1]
        return self._joined(shell, (one, first), (two, second), f"which depends on {place}")

    def _joined(self, shell: Shell, one: tuple[Shell, str], two: tuple[Shell, str], why: str) -> Outcome:
        """Behind two branches of which one runs. One that ends the script was not taken: else there is nothing to read."""
        open_ones = [state for state, flow in (one, two) if not flow]
        for state, flow in (one, two):
            if flow and (open_ones or one[1] != two[1]):
                self._leave(state, flow)
        if not open_ones:
            if one[1] == two[1] and one[1] != "exit":
                shell.adopt(merged(one[0], two[0], self.marks, why))
            return None, one[1] if one[1] == two[1] else "exit"
        shell.adopt(open_ones[0] if len(open_ones) == 1 else merged(one[0], two[0], self.marks, why))
        return None, ""

    def _selection(self, shell: Shell, selection: Selection, number: int) -> Outcome:
        if any(end != ";;" for _, _, end in selection.branches):
            return self._any_branch(shell, selection, [body for _, body, _ in selection.branches])
        if number == len(selection.branches):
            return True, ""
        word = self.expansion.text(shell, selection.word)
        patterns, body, _ = selection.branches[number]
        answers = [self._matches(shell, word, pattern) for pattern in patterns]
        if True in answers and None not in answers[: answers.index(True)]:
            return self.block(shell, body)
        if not any(answer is None for answer in answers):
            return self._selection(shell, selection, number + 1)
        place = f"{selection.source} (line {selection.line})"
        one, two = shell.copy(), shell.copy()
        with self._under(place):
            first = self.block(one, body)[1]
        second = self._selection(two, selection, number + 1)[1]
        return self._joined(shell, (one, first), (two, second), f"which depends on {place}")

    def _matches(self, shell: Shell, word: str, pattern: Any) -> bool | None:
        if pattern == (Text("*", False),):
            return True
        found = self.expansion.pattern(shell, pattern)
        return None if found is None or not is_known(word) else bool(found.fullmatch(word))

    def _any_branch(self, shell: Shell, node: Any, bodies: list[Block]) -> Outcome:
        """Commands that run never, once or often: what they set is not known, before them and behind."""
        place = f"{node.source} (line {node.line})"
        names = builtins.assigned(node, shell.functions)
        why = f"which depends on {place}"
        for _ in range(2):
            for name in names:
                shell.variables[name] = self.marks.mark(f"${name}", why)
            if builtins.ANYTHING in names:
                self.unread.append(f"line {node.line}: what {place} evaluates is not known")
            for body in bodies if _ == 0 else ():
                with self._under(place):
                    self.block(shell.copy(), body)
        return None, ""

    def _loop(self, shell: Shell, loop: Loop) -> Outcome:
        first, launches, lost = shell.copy(), len(self.launches), self.loses_its_way
        self.loses_its_way = False
        self.loops += 1
        outcome = self._rounds(shell, loop)
        if outcome is None or self.loses_its_way:
            shell.adopt(first)
            del self.launches[launches:]
            if loop.name:
                shell.variables[loop.name] = self.marks.mark(
                    f"${loop.name}", f"which changes in {loop.source} (line {loop.line})"
                )
            outcome = self._any_branch(shell, loop, [(*(loop.condition or ()), *loop.body)])
        self.loses_its_way = lost
        self.loops -= 1
        return outcome

    def _rounds(self, shell: Shell, loop: Loop) -> Outcome | None:
        """Follows each round; None where their number is not known."""
        values = self._values(shell, loop)
        if values is None and loop.condition is None:
            return None
        for number in range(MAX_ROUNDS):
            if values is not None and number < len(values):
                shell.variables[loop.name] = values[number]
            elif values is not None:
                return True, ""
            else:
                self.asked += 1
                status, flow = self.block(shell, loop.condition or ())
                self.asked -= 1
                if flow or status is None:
                    return None
                if status is loop.until:
                    return True, ""
            status, flow = self.block(shell, loop.body)
            if flow == "break":
                return True, ""
            if flow in ("exit", "return"):
                return status, flow
        return None

    def _values(self, shell: Shell, loop: Loop) -> list[str] | None:
        if loop.condition is not None:
            return None
        if loop.words is None:
            return None if shell.arguments is None else list(shell.arguments)
        values = [field for word in loop.words for field in self.expansion.fields(shell, word)]
        if loop.name in ALWAYS_SET or loop.name in shell.fixed:
            return None
        return values if len(values) < MAX_ROUNDS and all(map(is_known, values)) else None

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
        """Writes a command down; of `bash -c "…"` the commands in it too."""
        self.launches.append(Launch(command.line, tuple(words), tuple(self.when)))
        inner = self._inner(shell, words, command)
        if inner is None or all(map(is_mark, inner[0])):
            return
        text, arguments = inner
        child = shell.child(arguments, self.marks)
        for assignment in command.assignments:
            self.assign(child, assignment)
        held, self.returned, self.locals = (self.returned, self.locals), [], []
        self.run(text, child, command.line)
        self.returned, self.locals = held

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
