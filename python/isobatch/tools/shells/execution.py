"""Follows a script from its first line to its last, as bash would, but starts nothing: each command is written down with the words that
it would get. Where only the run knows which way it goes, both are followed, and what differs behind them is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import PurePosixPath
from typing import NamedTuple

from isobatch.errors import InputError
from isobatch.tools.shells import builtins, tree
from isobatch.tools.shells.conditions import evaluate, negated
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.state import (
    LAUNCHERS,
    Launch,
    Marks,
    Outcome,
    Shell,
    is_known,
    is_mark,
    is_several,
)  # fmt: skip
from isobatch.tools.shells.syntax import DECLARES, parse
from isobatch.tools.shells.tree import Block, Chain, Command, Pipeline, Text, Word

MAX_COMMANDS = 20_000
MAX_DEPTH = 40
MAX_ROUNDS = 200
_SHELLS = ("bash", "sh", "zsh", "dash")
_LEAVES = ("exit", "return", "break", "continue")
_OTHERS = ("source", ".", "eval", "exec", *_LEAVES, *DECLARES)
"""Commands of bash that are followed here."""


class Departure(NamedTuple):
    """Where some runs leave a loop or a function earlier than others.

    Attributes:
        flow: how: `break`, `continue` or `return`.
        shell: the variables of these runs.
        place: the condition under which they do.
    """

    flow: str
    shell: Shell
    place: str


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
        self.goes_on = False
        self.count = self.line = 0
        self._when: list[str] = []
        self._departures: list[Departure] = []
        self._depth = self._tested = 0

    def run(self, text: str, shell: Shell, line: int = 1) -> Outcome:
        """Follows a text of commands.

        Raises:
            InputError: it cannot be read, or goes on and on.
        """
        if not self._depth and not is_known(text):
            raise InputError("has characters of Unicode's private use, which are not read")
        with self._deeper():
            return self._block(shell, parse(text, line))

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InputError(f"line {self.line}: commands call each other more than {MAX_DEPTH} deep")
        yield
        self._depth -= 1

    @contextmanager
    def _under(self, condition: str) -> Iterator[None]:
        """Commands that run only under a condition."""
        self._when.append(self.marks.shown(condition))
        yield
        self._when.pop()

    @contextmanager
    def _test(self) -> Iterator[None]:
        """Commands that may fail under `set -e`, as their status is asked for."""
        self._tested += 1
        yield
        self._tested -= 1

    def _apart(self, shell: Shell, command: Command) -> bool | None:
        """A command in a subshell: what it sets, and where it leaves it, changes nothing outside."""
        first = len(self._departures)
        status, _ = self._command(shell.apart(), command)
        del self._departures[first:]
        return status

    def _block(self, shell: Shell, block: Block) -> Outcome:
        status: bool | None = True
        for chain in block:
            status, flow = self._chain(shell, chain)
            if flow:
                return status, flow
        return status, ""

    def _chain(self, shell: Shell, chain: Chain) -> Outcome:
        if chain.background:
            self._apart(shell, tree.Grouping((chain._replace(background=False),), False))
            return True, ""
        status: bool | None = True
        flow = ""
        for operator, pipeline in chain.items:
            is_last = pipeline is chain.items[-1][1]
            if operator and status is None:
                status = self._maybe(shell, operator, pipeline, chain)
            elif not operator or status == (operator == "&&"):
                with nullcontext() if is_last and not pipeline.negated else self._test():
                    status, flow = self._pipeline(shell, pipeline)
            if flow:
                return status, flow
        return status, ""

    def _maybe(self, shell: Shell, operator: str, pipeline: Pipeline, chain: Chain) -> bool | None:
        """The right side of `&&` or `||` where only the run knows whether it runs. One that ends the script did not run: we go on."""
        other, place = shell.copy(), f"{chain.source} (line {chain.line})"
        with self._under(place):
            _, flow = self._pipeline(other, pipeline)
        self._join(shell, "", other, flow, place)
        return operator == "||" if flow else None

    def _join(self, shell: Shell, flow: str, other: Shell, other_flow: str, place: str) -> str:
        """Makes the state the one behind two ways, one for each answer of a condition, and returns how both leave.

        A way that ends the script was not taken: else there is nothing to read. One that leaves a loop or a function early meets the
        other at its end.
        """
        if "exit" in (flow, other_flow) and flow != other_flow:
            self.goes_on = True
            shell.adopt(other if flow == "exit" else shell)
            return other_flow if flow == "exit" else flow
        if flow == other_flow:
            self.marks.merge(shell, other, f"which depends on {place}")
            return flow
        if flow and other_flow:
            raise InputError(f"line {self.line}: {flow} or {other_flow}, by what is not known, is not read")
        self._departures.append(Departure(flow or other_flow, shell.copy() if flow else other, place))
        shell.adopt(other if flow else shell)
        return ""

    def _end(self, shell: Shell, kind: str, outcome: Outcome, first: int) -> Outcome:
        """The end of what `kind` leaves: the runs that left it since the departure `first` are merged into the others."""
        status, flow = outcome
        left = self._departures[first:]
        self._departures[first:] = [it for it in left if it.flow != kind]
        for it in left:
            if it.flow == kind and flow not in ("", kind):
                raise InputError(
                    f"line {self.line}: a {kind} that only some runs meet, before {flow}, is not read"
                )
            if it.flow == kind:
                self.marks.merge(shell, it.shell, f"which depends on {it.place}")
                status = None
        return status, "" if flow == kind else flow

    def _pipeline(self, shell: Shell, pipeline: Pipeline) -> Outcome:
        if len(pipeline.commands) == 1:
            status, flow = self._command(shell, pipeline.commands[0])
            return negated(status) if pipeline.negated else status, flow
        for command in pipeline.commands:
            self._apart(shell, command)
        return None, ""

    def _command(self, shell: Shell, command: Command) -> Outcome:
        self.count += 1
        if self.count > MAX_COMMANDS:
            raise InputError(f"line {self.line}: more than {MAX_COMMANDS:,} commands: a loop without an end?")
        self.line = getattr(command, "line", self.line)
        try:
            return self._followed(shell, command)
        except InputError as error:
            if error.message.startswith("line "):
                raise
            raise InputError(f"line {self.line}: {self.marks.shown(error.message)}") from None

    def _followed(self, shell: Shell, command: Command) -> Outcome:
        match command:
            case tree.Simple():
                return self._simple(shell, command)
            case tree.Choice():
                return self._choice(shell, command, 0)
            case tree.Repetition():
                return self._loop(shell, command)
            case tree.Redirection():
                self._check_files(shell, command.files)
                return self._command(shell, command.command)
            case tree.Computation():
                return self._computation(shell, command), ""
            case tree.Grouping(apart=True):
                return self._apart(shell, command._replace(apart=False)), ""
            case tree.Grouping():
                return self._block(shell, command.body)
            case tree.Condition():
                return evaluate(self.expansion, shell, command), ""
            case tree.Function():
                if command.name in builtins.BUILTINS or command.name in _OTHERS:
                    raise InputError(f"a function with the name {command.name} is not read")
                shell.functions[command.name] = command.body
        return True, ""

    def _computation(self, shell: Shell, command: tree.Computation) -> bool | None:
        value = self.expansion.computed(shell, command.inside)
        if value == "0" and shell.errexit and not self._tested:
            raise InputError(f"{command.inside.source} is 0: under set -e that ends the script")
        return value != "0" if is_known(value) else None

    def _check_files(self, shell: Shell, files: tuple[Word, ...]) -> None:
        """Raises an InputError for a redirection to no file, or to several: bash does not run the command."""
        for word in files:
            names = self.expansion.fields(shell, word)
            if not all(map(is_known, names)):
                self.expansion.may_fail = True
            elif names == [""] or len(names) != 1:
                raise InputError(
                    f"a redirection needs one file, and has {len(names)} words{': ' * bool(names)}{' '.join(names)}: bash does not run the command"
                )

    def _choice(self, shell: Shell, choice: tree.Choice, number: int) -> Outcome:
        """`if` and `case`, from the branch of this number on."""
        if number == len(choice.branches):
            return True, ""
        condition, body, source = choice.branches[number]
        status: bool | None = True
        if condition is not None:
            with self._test():
                status, flow = self._block(shell, condition)
            if flow:
                return status, flow
        if status is not None:
            return self._block(shell, body) if status else self._choice(shell, choice, number + 1)
        place = f"{source} (line {choice.line})"
        other = shell.copy()
        with self._under(f"if {place}"):
            first = self._block(shell, body)[1]
        with self._under(f"if not {place}"):
            second = self._choice(other, choice, number + 1)[1]
        return None, self._join(shell, first, other, second, place)

    def _loop(self, shell: Shell, loop: tree.Repetition) -> Outcome:
        """Each round of a loop whose length is known. Of another what it sets is not known, before it and behind."""
        values = self._values(shell, loop)
        before, marks = shell.copy(), (len(self.launches), len(self.unread), len(self._departures))
        loops = shell.loops
        shell.loops += 1
        outcome = self._rounds(shell, loop, values)
        if outcome is None:
            del self.launches[marks[0] :], self.unread[marks[1] :], self._departures[marks[2] :]
            shell.adopt(before)
            shell.loops = loops + 1
            outcome = self._unknown_rounds(shell, loop)
        else:
            outcome = self._end(shell, "break", outcome, marks[2])
        shell.loops = loops
        return outcome

    def _rounds(self, shell: Shell, loop: tree.Repetition, values: list[str] | None) -> Outcome | None:
        """The rounds one by one; None where their number is not known."""
        if loop.name and values is None:
            return None
        status: bool | None = True
        for number in range(MAX_ROUNDS):
            if values is not None:
                if number == len(values):
                    return (None if values else True), ""
                shell.set(loop.name, values[number])
            else:
                before = shell.copy()
                with self._test():
                    status, flow = self._block(shell, loop.condition)
                if flow or status is None:
                    return (status, flow) if flow else None
                if not status:
                    return (None if number else True), ""
            first = len(self._departures)
            status, flow = self._end(shell, "continue", self._block(shell, loop.body), first)
            if flow:
                return status, flow
            self._block(shell, loop.step)
            if values is None and shell == before:
                return None
        return None

    def _unknown_rounds(self, shell: Shell, loop: tree.Repetition) -> Outcome:
        place = f"{loop.source} (line {loop.line})"
        marks = (len(self.launches), len(self.unread), len(self._departures))
        for _ in range(MAX_DEPTH):
            del self.launches[marks[0] :], self.unread[marks[1] :], self._departures[marks[2] :]
            other = shell.copy()
            with self._under(place):
                if loop.name:
                    other.set(loop.name, self.marks.mark(f"${loop.name}", f"which changes in {place}"))
                with self._test():
                    _, flow = self._block(other, loop.condition)
                if not flow:
                    outcome = self._block(other, loop.body)
                    outcome = self._end(other, "continue", outcome, marks[2])
                    flow = self._end(other, "break", outcome, marks[2])[1]
            if flow:
                self._join(shell, "", other, flow, place)
                return None, ""
            self._block(other, loop.step)
            if not self.marks.merge(shell, other, f"which depends on {place}"):
                return None, ""
        raise InputError(f"{place} sets what is not known after many rounds")

    def _values(self, shell: Shell, loop: tree.Repetition) -> list[str] | None:
        if not loop.name:
            return None
        values = list(shell.arguments or ())
        if loop.words is not None:
            values = [field for word in loop.words for field in self.expansion.fields(shell, word)]
        elif shell.arguments is None:
            return None
        return values if len(values) < MAX_ROUNDS and all(map(is_known, values)) else None

    def _simple(self, shell: Shell, command: tree.Simple) -> Outcome:
        if command.document is not None:
            self.expansion.text(shell, command.document.word)
        if command.words:
            self._check_files(shell, command.files)
        if command.words[:1] in [((Text(name, False),),) for name in DECLARES]:
            builtins.declare(self.expansion, shell, command)
            return True, ""
        words = [field for word in command.words for field in self.expansion.fields(shell, word)]  # type: ignore[arg-type]
        if not words:
            for assignment in command.assignments:
                builtins.assign(self.expansion, shell, assignment)
            ran = any(
                isinstance(part, tree.Output)
                for it in command.assignments
                for word in it.words
                for part in word
            )
            self._check_files(shell, command.files if not command.words else ())
            return (None if ran or command.words or command.files else True), ""
        name = words[0]
        if name in shell.functions:
            return self._call(shell, command, words)
        if name in _OTHERS or name in builtins.BUILTINS or name == "command":
            return self._builtin(shell, command, words)
        if not is_known(name):
            self.unread.append(f"line {command.line}: what {self.marks.shown(name)} runs is not known")
        self._record(shell, words, command)
        return None, ""

    def _builtin(self, shell: Shell, command: tree.Simple, words: list[str]) -> Outcome:
        """A command of bash itself. A redirection may keep it from being run: then what it changes is not read."""
        name, shown = words[0], " ".join(words)
        assigned = bool(command.assignments) and name not in ("read", "exec", "command")
        if assigned or (command.files and name in ("let", "unset", "set", "shift", "eval", *_LEAVES)):
            raise InputError(f"{name} with an assignment or a redirection is not read")
        if (
            name == "read"
            and command.document
            and not command.assignments
            and sorted(words[1:-1]) in (["", "-d", "-r"], ["", "-rd"])
        ):
            builtins.read_document(self.expansion, shell, command.document, words[-1])
            return False, ""  # it wants an end that is not there
        if name in builtins.BUILTINS:
            status = builtins.BUILTINS[name](self.expansion, shell, words)
            return (None if command.files else status), ""
        if name in ("break", "continue"):
            if words[1:] not in ([], ["1"]) or not shell.loops:
                raise InputError(f"{shown}, or outside of a loop, is not read")
            return True, name
        if name in ("exit", "return"):
            if len(words) > 2 or not all(word.isdecimal() or is_several(word) for word in words[1:]):
                raise InputError(f"{shown} is not read")
            if name == "return" and shell.local is None:
                raise InputError("return outside of a function is not read")
            return (int(words[1]) % 256 == 0 if words[1:] and is_known(words[1]) else None), name
        if name == "eval":
            text = " ".join(words[1:])
            if not is_mark(text.lstrip()[:1] or "x"):
                return self.run(text, shell, command.line)
            self._record(shell, text.split() or [text], command)
            self.unread.append(f"line {command.line}: what {self.marks.shown(shown)} sets is not known")
        elif name in ("source", "."):
            self.unread.append(
                f"line {command.line}: {self.marks.shown(shown)} is another file, and not read: what it sets is not known"
            )
        elif words[1:2] and (words[1] in _OTHERS or words[1] in builtins.BUILTINS or name in DECLARES):
            raise InputError(f"{shown} is not read")
        elif words[1:]:
            self._record(shell, words[name == "exec" :], command)
            return None, "exit" if name == "exec" else ""
        return None, ""

    def _call(self, shell: Shell, command: tree.Simple, words: list[str]) -> Outcome:
        """Calls a function: its arguments are its own, and so are its local variables."""
        body = shell.functions[words[0]]
        if body is None or command.files or command.assignments:
            raise InputError(f"{words[0]} is a function of some runs, or has a redirection or an assignment")
        with self._deeper():
            arguments, local, loops, first = shell.arguments, shell.local, shell.loops, len(self._departures)
            shell.arguments, shell.local, shell.loops = tuple(words[1:]), {}, 0
            outcome = self._end(shell, "return", self._command(shell, body), first)
            shell.leave(local)
            shell.arguments, shell.loops = arguments, loops
        return outcome

    def _record(self, shell: Shell, words: list[str], command: tree.Simple) -> None:
        """Writes a command down; of `bash -c "…"` those in it, which have its arguments."""
        own = shell.copy()
        for assignment in command.assignments:
            builtins.assign(self.expansion, own, assignment)
            own.exported.add(assignment.name)
        text, arguments = self._inner(own, words, command)
        if text and not is_several(text):
            self.run(text, own.child(arguments), command.line)
            return
        seen = [(name, own.variables.get(name)) for name in LAUNCHERS if name in own.exported]
        environment = tuple((name, value) for name, value in seen if isinstance(value, str))
        when = (*self._when, *(self.marks.shown(f"if not {it.place}") for it in self._departures))
        self.launches.append(Launch(command.line, tuple(words), when, environment))

    def _inner(self, shell: Shell, words: list[str], command: tree.Simple) -> tuple[str, tuple[str, ...]]:
        """The script inside a command, and its arguments: of `bash -c TEXT`, or in a here-document of `bash` and `sbatch`."""
        for place, word in enumerate(words[:-2]):
            option = words[place + 1]
            if (
                PurePosixPath(word).name in _SHELLS
                and option[:1] == "-"
                and option[1:2] != "-"
                and "c" in option
            ):
                return words[place + 2], tuple(words[place + 4 :])
        if command.document and (words[0] == "sbatch" or PurePosixPath(words[-1]).name in _SHELLS):
            return self.expansion.text(shell, command.document.word), ()
        return "", ()
