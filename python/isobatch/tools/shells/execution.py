"""Follows a script as bash would, but starts nothing: each command is written down with the words that it
would get. Where only the run knows which way it goes, both are followed, and what differs behind them is not
known.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from isobatch.errors import InputError
from isobatch.tools.shells import builtins, tree
from isobatch.tools.shells.conditions import evaluate, negated
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.launches import Launch, inner_script, launcher_variables
from isobatch.tools.shells.paths import Paths
from isobatch.tools.shells.simple import DECLARES
from isobatch.tools.shells.state import Marks, Outcome, Shell, is_known, is_mark, is_several
from isobatch.tools.shells.syntax import parse
from isobatch.tools.shells.tree import Block, Chain, Command, Pipeline, Text
from isobatch.tools.shells.words import LineError

MAX_COMMANDS = 20_000
MAX_DEPTH = 40
MAX_ROUNDS = 200


class Execution:
    """Follows one script: `launches` are its commands in order, `unread` says what is not read."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.expansion = Expansion(self.marks)
        self.launches: list[Launch] = []
        self.unread: list[str] = []
        self.count = self.line = 0
        self.paths = Paths(self.marks)
        self._depth = self._tested = 0

    def run(self, text: str, shell: Shell, line: int = 1) -> Outcome:
        """Follows a text of commands; raises InputError for an unreadable or endless one."""
        if not self._depth and not is_known(text):
            raise InputError("has characters of Unicode's private use, which are not read")
        with self._deeper():
            try:
                return self._block(shell, parse(text, line))
            except LineError:
                raise
            except InputError as error:
                raise LineError(f"line {self.line}: {self.marks.shown(error.message)}") from None

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InputError(f"commands call each other more than {MAX_DEPTH} deep")
        yield
        self._depth -= 1

    @contextmanager
    def _test(self, is_asked: bool = True) -> Iterator[None]:
        """Marks commands in a condition: they may fail under `set -e`."""
        self._tested += is_asked
        yield
        self._tested -= is_asked

    def _apart(self, shell: Shell, command: Command) -> bool | None:
        """A command in a subshell: what it sets, and where it leaves it, changes nothing outside."""
        first = len(self.paths.departures)
        status, _ = self._command(shell.apart(), command)
        del self.paths.departures[first:]
        return status

    def _block(self, shell: Shell, block: Block) -> Outcome:
        outcome: Outcome = True, ""
        for chain in block:
            if (outcome := self._chain(shell, chain))[1]:
                break
        return outcome

    def _chain(self, shell: Shell, chain: Chain) -> Outcome:
        if chain.background:
            self._apart(shell, tree.Grouping((chain._replace(background=False),), False))
            return True, ""
        status: bool | None = True
        flow = ""
        for operator, pipeline in chain.items:
            with self._test(pipeline.negated or pipeline is not chain.items[-1][1]):
                if operator and status is None:
                    status = self._maybe(shell, operator, pipeline, chain)
                elif not operator or status == (operator == "&&"):
                    status, flow = self._pipeline(shell, pipeline, chain)
            if flow:
                break
        return status, flow

    def _maybe(self, shell: Shell, operator: str, pipeline: Pipeline, chain: Chain) -> bool | None:
        """The right side of `&&` or `||` in doubt; if it ends the script, it did not run."""
        branch, place = shell.copy(), f"{chain.source} (line {chain.line})"
        with self.paths.under(place):
            _, flow = self._pipeline(branch, pipeline, chain)
        self.paths.join(shell, "", branch, flow, place)
        return operator == "||" if flow else None

    def _pipeline(self, shell: Shell, pipeline: Pipeline, chain: Chain) -> Outcome:
        """Commands joined by `|`; under `set -e` a failing one ends the script, a block by its own."""
        last, flow, ends = pipeline.commands[-1], "", shell.errexit and not self._tested
        counts = len(pipeline.commands) > 1
        if counts:
            answers = [self._apart(shell, command) for command in pipeline.commands]
            status = False if answers[-1] is False or (False in answers and ends) else None
        else:
            status, flow = self._command(shell, last)
            last = last.command if isinstance(last, tree.Redirection) else last
            counts = isinstance(last, tree.Simple | tree.Computation) or getattr(last, "apart", False)
        if status is False and not flow and counts and shell.errexit and not self._tested:
            reason = f"{chain.source} fails (so does a (( … )) of 0)"
            raise InputError(f"{reason}: under set -e that ends the script")
        return negated(status) if pipeline.negated else status, flow

    def _command(self, shell: Shell, command: Command) -> Outcome:
        self.count += 1
        if self.count > MAX_COMMANDS:
            raise InputError(f"more than {MAX_COMMANDS:,} commands: a loop without an end?")
        self.line = getattr(command, "line", self.line)
        match command:
            case tree.Simple():
                return self._simple(shell, command)
            case tree.Choice():
                return self._choice(shell, command, 0)
            case tree.Repetition():
                return self._loop(shell, command)
            case tree.Redirection():
                self.expansion.check_files(shell, command.files)
                return self._command(shell, command.command)
            case tree.Computation():
                return self.expansion.compute(shell, command.inside), ""
            case tree.Grouping(apart=True):
                return self._apart(shell, command._replace(apart=False)), ""
            case tree.Grouping():
                return self._block(shell, command.body)
            case tree.Condition():
                return evaluate(self.expansion, shell, command), ""
            case tree.Function():
                if command.name in builtins.NAMES:
                    raise InputError(f"a function with the name {command.name} is not read")
                shell.functions[command.name] = command.body
        return True, ""

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
        branch = shell.copy()
        with self.paths.under(f"if {place}"):
            first = self._block(shell, body)[1]
        with self.paths.under(f"if not {place}"):
            second = self._choice(branch, choice, number + 1)[1]
        return None, self.paths.join(shell, first, branch, second, place)

    def _loop(self, shell: Shell, loop: tree.Repetition) -> Outcome:
        """Follows each round of a loop of known length; any other loop sets unknown values."""
        shell.loops += 1
        before, position = shell.copy(), self._position()
        outcome = self._rounds(shell, loop)
        if outcome is None:
            self._rewind(position)
            shell.adopt(before)
            outcome = self._unknown_rounds(shell, loop)
        shell.loops -= 1
        return self.paths.end(shell, "break", outcome, position[2])

    def _position(self) -> tuple[int, int, int]:
        """How much is written down so far."""
        return len(self.launches), len(self.unread), len(self.paths.departures)

    def _rewind(self, position: tuple[int, int, int]) -> None:
        """Forgets everything recorded since a position."""
        launches, unread, departures = position
        del self.launches[launches:], self.unread[unread:], self.paths.departures[departures:]

    def _rounds(self, shell: Shell, loop: tree.Repetition) -> Outcome | None:
        """The rounds one by one; None where their number is not known."""
        values = self._values(shell, loop) if loop.name else None
        for number in range(MAX_ROUNDS):
            before, goes_on = shell.copy(), None if values is None else number < len(values)
            if not loop.name:
                with self._test():
                    goes_on, flow = self._block(shell, loop.condition)
                if flow:
                    return goes_on, flow
            if not goes_on:
                return None if goes_on is None else ((None if number else True), "")
            if values is not None:
                shell.set(loop.name, values[number])
            status, flow = self._round(shell, loop)
            if flow:
                return status, flow
            if not loop.name and shell == before:
                return None
        return None

    def _round(self, shell: Shell, loop: tree.Repetition) -> Outcome:
        """The body of a loop, and the step of `for ((…))`."""
        first = len(self.paths.departures)
        status, flow = self.paths.end(shell, "continue", self._block(shell, loop.body), first)
        if not flow:
            self._block(shell, loop.step)
        return status, flow

    def _unknown_rounds(self, shell: Shell, loop: tree.Repetition) -> Outcome:
        place, position = f"{loop.source} (line {loop.line})", self._position()
        for _ in range(MAX_DEPTH):
            self._rewind(position)
            branch = shell.copy()
            with self.paths.under(place):
                if loop.name:
                    branch.set(loop.name, self.marks.mark(f"${loop.name}", f"which changes in {place}"))
                with self._test():
                    outcome = self._block(branch, loop.condition)
                outcome = outcome if outcome[1] else self._round(branch, loop)
                flow = self.paths.end(branch, "break", outcome, position[2])[1]
            if flow:
                self.paths.join(shell, "", branch, flow, place)
                return None, ""
            if not self.marks.merge(shell, branch, f"which depends on {place}"):
                return None, ""
        raise InputError(f"{place} sets what is not known after many rounds")

    def _values(self, shell: Shell, loop: tree.Repetition) -> list[str] | None:
        values = None if shell.arguments is None else list(shell.arguments)
        if loop.words is not None:
            values = [field for word in loop.words for field in self.expansion.fields(shell, word)]
        is_long = values is None or len(values) >= MAX_ROUNDS
        return None if is_long or not all(map(is_known, values or ())) else values

    def _simple(self, shell: Shell, command: tree.Simple) -> Outcome:
        if command.document is not None:
            self.expansion.text(shell, command.document.word)
        self.expansion.check_files(shell, command.files)
        if command.words[:1] in [((Text(name, False),),) for name in DECLARES]:
            builtins.declare(self.expansion, shell, command)
            return True, ""
        fields = self.expansion.fields
        words = [field for word in command.words for field in fields(shell, word)]  # type: ignore[arg-type]
        if not words:
            for assignment in command.assignments:
                builtins.assign(self.expansion, shell, assignment)
            parts = [part for assignment in command.assignments for word in assignment.words for part in word]
            ran = any(isinstance(part, tree.Output) for part in parts)
            return (None if ran or command.words or command.files else True), ""
        name = words[0]
        if name in shell.functions:
            return self._call(shell, command, words)
        if name in builtins.NAMES or name == "command":
            return self._builtin(shell, command, words)
        if not is_known(name):
            self.unread.append(f"line {command.line}: what {self.marks.shown(name)} runs is not known")
        self._record(shell, words, command)
        return None, ""

    def _builtin(self, shell: Shell, command: tree.Simple, words: list[str]) -> Outcome:
        """A command of bash itself; if a redirection may keep it from being run, its changes are not read."""
        name, shown = words[0], self.marks.shown(" ".join(words))
        assigned = bool(command.assignments) and name not in ("read", "exec", "command")
        if assigned or (command.files and name in ("unset", "set", "shift", "eval", *builtins.LEAVES)):
            raise InputError(f"{name} with an assignment or a redirection is not read")
        whole = name == "read" and sorted(words[1:-1]) in (["", "-d", "-r"], ["", "-rd"])
        if whole and command.document and not command.assignments:
            text = self.expansion.text(shell, command.document.word).strip(" \t\n")
            self.expansion.assign(shell, words[-1], text)
            return False, ""  # it wants an end that is not there
        if name in builtins.BUILTINS:
            status = builtins.BUILTINS[name](self.expansion, shell, words)
            return (None if command.files else status), ""
        if name in ("break", "continue"):
            if words[1:] not in ([], ["1"]) or not shell.loops:
                raise InputError(f"{shown} {'outside of a loop ' if not shell.loops else ''}is not read")
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
            self.unread.append(f"line {command.line}: what {shown} sets is not known")
        elif name in ("source", "."):
            why = "is another file, which is not read: what it sets is not known"
            self.unread.append(f"line {command.line}: {shown} {why}")
        elif words[1:2] and (words[1] in builtins.NAMES or name in DECLARES):
            raise InputError(f"{shown} is not read")
        elif words[1:]:
            self._record(shell, words[name == "exec" :], command)
        return None, "exit" if name == "exec" and words[1:] else ""

    def _call(self, shell: Shell, command: tree.Simple, words: list[str]) -> Outcome:
        """Calls a function: its arguments are its own, and so are its local variables."""
        body = shell.functions[words[0]]
        if body is None or command.files or command.assignments:
            why = "called with a redirection or an assignment" if body else "that is not the same in all runs"
            raise InputError(f"{words[0]} is a function {why}, which is not read")
        with self._deeper():
            before, first = shell.copy(), len(self.paths.departures)
            shell.outer |= {*(shell.local or ())}
            shell.arguments, shell.local, shell.loops = tuple(words[1:]), {}, 0
            outcome = self.paths.end(shell, "return", self._command(shell, body), first)
            shell.leave(before)
        return outcome

    def _record(self, shell: Shell, words: list[str], command: tree.Simple) -> None:
        """Records a command; for `bash -c "…"` those inside, with its arguments."""
        own = shell.copy()
        for assignment in command.assignments:
            builtins.assign(self.expansion, own, assignment)
            own.exported.add(assignment.name)
        document = self.expansion.text(own, command.document.word) if command.document else None
        text, arguments = inner_script(words, document)
        if text and not is_several(text):
            tested, self._tested = self._tested, 0
            self.run(text, own.child(arguments), command.line)
            self._tested = tested
            return
        environment = launcher_variables(own)
        self.launches.append(Launch(command.line, tuple(words), self.paths.conditions, environment))
