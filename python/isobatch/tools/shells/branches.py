"""What runs under a condition: `if`, `case`, loops, and the right side of `&&`. Where only the run knows which way it goes, both are
followed, and what differs behind them is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isobatch.tools.shells import builtins
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.pieces import ALWAYS_SET
from isobatch.tools.shells.state import Launch, Marks, Outcome, Shell, is_known, merged
from isobatch.tools.shells.tree import Block, Chain, Choice, Pipeline, Repetition, Selection, Text

MAX_ROUNDS = 200


class Branches:
    """Follows the parts of a script that run under a condition.

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
        self.goes_on = self.loses_its_way = False
        self.asked = self.loops = 0

    def block(self, shell: Shell, block: Block) -> Outcome:
        """Commands one after the other."""
        raise NotImplementedError

    def pipeline(self, shell: Shell, pipeline: Pipeline, last: bool) -> Outcome:
        """Commands joined by `|`."""
        raise NotImplementedError

    def maybe(self, shell: Shell, operator: str, pipeline: Pipeline, chain: Chain, last: bool) -> bool | None:
        """The right side of `&&` or `||` where only the run knows whether it runs. One that ends the script did not run: we go on."""
        other = shell.copy()
        with self.under(f"{chain.source} (line {chain.line})"):
            _, flow = self.pipeline(other, pipeline, last)
        if flow:
            self._leave(other, flow)
            return operator == "||"
        shell.adopt(merged(shell, other, self.marks, f"which depends on {chain.source} (line {chain.line})"))
        return None

    def _leave(self, shell: Shell, flow: str) -> None:
        """A branch that does not go on; what it leaves at its function's end is kept."""
        if flow == "return" and self.returned:
            self.returned[-1].append(shell)
        if flow in ("exit", "return"):
            self.goes_on = True
        if flow in ("break", "continue"):
            self.loses_its_way = True

    @contextmanager
    def under(self, condition: str) -> Iterator[None]:
        """Commands that run only under a condition."""
        self.when.append(self.marks.shown(condition))
        yield
        self.when.pop()

    def choice(self, shell: Shell, choice: Choice, number: int) -> Outcome:
        """`if`, from the branch of this number on."""
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
            return self.choice(shell, choice, number + 1)
        place = f"{source} (line {choice.line})"
        one, two = shell.copy(), shell.copy()
        with self.under(f"if {place}"):
            first = self.block(one, body)[1]
        with self.under(f"if not {place}"):
            second = self.choice(two, choice, number + 1)[1]
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

    def selection(self, shell: Shell, selection: Selection, number: int) -> Outcome:
        """`case`, from the branch of this number on."""
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
            return self.selection(shell, selection, number + 1)
        place = f"{selection.source} (line {selection.line})"
        one, two = shell.copy(), shell.copy()
        with self.under(place):
            first = self.block(one, body)[1]
        second = self.selection(two, selection, number + 1)[1]
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
                with self.under(place):
                    self.block(shell.copy(), body)
        return None, ""

    def loop(self, shell: Shell, loop: Repetition) -> Outcome:
        """A loop: each round where their number is known, else what it sets is not."""
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

    def _rounds(self, shell: Shell, loop: Repetition) -> Outcome | None:
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

    def _values(self, shell: Shell, loop: Repetition) -> list[str] | None:
        if loop.condition is not None:
            return None
        if loop.words is None:
            return None if shell.arguments is None else list(shell.arguments)
        values = [field for word in loop.words for field in self.expansion.fields(shell, word)]
        if loop.name in ALWAYS_SET or loop.name in shell.fixed:
            return None
        return values if len(values) < MAX_ROUNDS and all(map(is_known, values)) else None
