"""Branches decided only in the run: their conditions, and where they meet again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from isobatch.errors import InputError
from isobatch.tools.shells.state import Marks, Outcome, Shell


class Departure(NamedTuple):
    """Where some runs leave a loop or a function by `flow`, under the condition `place`."""

    flow: str
    shell: Shell
    place: str


class Paths:
    """The branches open at a place of the script.

    Attributes:
        departures: of loops and functions that have not ended.
        goes_on: whether it was taken for granted that the script does not end somewhere, as in `cd data ||
            exit 1`.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.departures: list[Departure] = []
        self.goes_on = False
        self._when: list[str] = []

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions for reaching this place."""
        return (
            *self._when,
            *(self.marks.shown(f"if not {departure.place}") for departure in self.departures),
        )

    @contextmanager
    def under(self, condition: str) -> Iterator[None]:
        """Follows commands under a condition."""
        self._when.append(self.marks.shown(condition))
        yield
        self._when.pop()

    def join(self, shell: Shell, flow: str, branch: Shell, other_flow: str, place: str) -> str:
        """Makes the state the one behind two ways, one for each answer of a condition, and returns how both
        leave.

        A way that ends the script was not taken: else there is nothing to read. One that leaves a loop or a
            function early meets the other at its end.
        """
        if "exit" in (flow, other_flow) and flow != other_flow:
            self.goes_on = True
            shell.adopt(branch if flow == "exit" else shell)
            return other_flow if flow == "exit" else flow
        if flow == other_flow:
            self.marks.merge(shell, branch, f"which depends on {place}")
            return flow
        if flow and other_flow:
            raise InputError(f"{flow} or {other_flow}, by what is not known, is not read")
        self.departures.append(Departure(flow or other_flow, shell.copy() if flow else branch, place))
        shell.adopt(branch if flow else shell)
        return ""

    def end(self, shell: Shell, kind: str, outcome: Outcome, first: int) -> Outcome:
        """Ends a loop or a function: merges the runs that left it by `kind` since the departure `first`."""
        status, flow = outcome
        open_departures = self.departures[first:]
        self.departures[first:] = [departure for departure in open_departures if departure.flow != kind]
        for departure in open_departures:
            if departure.flow == kind and flow not in ("", kind):
                raise InputError(f"a {kind} that only some runs meet, before {flow}, is not read")
            if departure.flow == kind:
                self.marks.merge(shell, departure.shell, f"which depends on {departure.place}")
                status = None
        return status, "" if flow == kind else flow
