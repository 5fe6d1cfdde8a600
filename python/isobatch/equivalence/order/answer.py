"""The answer to a command compared in order, with itself in another environment or after a restart."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from isobatch.equivalence.laws import SplitCause
from isobatch.equivalence.order.comparison import ESSENTIAL, OrderedComparison, OrderedRow
from isobatch.equivalence.releases.weights import Sides, Weighed
from isobatch.equivalence.result import Same
from isobatch.words import counted, few

SCHEMA = "isobatch.order/1"
PAGES = {"release": "upgrade.md", "command": "same.md#beside-another-script"}
UNCOMPARED = (
    "Not compared: rows and weights that were given, dropout's and other random draws, evaluation and "
    "checkpoints, and what follows after these steps."
)
"""Of two commands."""
MOST_SETTINGS = 8
"""Settings that a line lists."""


class Start(msgspec.Struct, frozen=True):
    """A start of a bisection, or after a checkpoint: its name, and how it compares in words.

    `same`: None where it could not be compared.
    """

    name: str
    same: bool | None
    text: str


class OrderedSame(Same, frozen=True, kw_only=True):
    """Whether two runs of a command are the same training, by the first difference in order.

    Attributes:
        kind: "release", another environment; "resume", a continuation; "command", another command.
        sides: both sides in words, the reference first.
        measured: the rows of the order, each with its state and both sides' values.
        settings: of the objects that train, those that differ, with both values.
        starts: of a bisection, or one for each checkpoint.
        causes: of the difference.
    """

    schema: str = SCHEMA
    kind: Literal["release", "resume", "command"]
    sides: list[str]
    measured: list[OrderedRow]  # type: ignore[assignment]
    settings: dict[str, list[Any]] = {}
    starts: list[Start] = []
    causes: list[SplitCause] = []

    @property
    def cause(self) -> SplitCause | None:
        """The first difference, with its remedy; None without one."""
        return self.causes[0] if self.causes else None

    @property
    def unmeasured(self) -> list[str]:
        """Why the training is not called the same although nothing differs."""
        unseen = [row for row in self.measured if row.holds is None and row.text]
        texts = [row.text for row in unseen if row.id in ("repeat", "split", *ESSENTIAL[1:])]
        texts = texts or [row.text for row in unseen]
        return texts or [start.text for start in self.starts if start.same is None]

    def lines(self) -> Iterator[str]:
        """Yields the verdict, the rows in order, the causes with their remedies, and the runs' changes."""
        yield self._ordered_verdict()
        yield ""
        width = max(len(row.measures) for row in self.measured)
        hidden = []
        for row in self.measured:
            if row.holds is None and self.same is False:
                hidden.append(row.measures)
                continue
            yield f"  {row.measures.ljust(width)}  {self._state(row)}"
        if hidden:
            yield f"  not compared: {few(hidden, 20)}"
        for start in self.starts:
            yield f"  {start.name}: {start.text}"
        for cause in self.causes:
            yield ""
            yield cause.name
            yield f"  {cause.text}"
            yield f"  → {cause.remedy}" + (f" (docs/{cause.page})" if cause.page else "")
        if self.settings and self.same is False:
            yield ""
            texts = [f"{name} {shown(a)} → {shown(b)}" for name, (a, b) in self.settings.items()]
            more = len(texts) - MOST_SETTINGS
            yield (
                "Settings that differ: " + "; ".join(texts[:MOST_SETTINGS]) + (f"; {more} more" * (more > 0))
            )
        if self.changes:
            yield ""
            yield f"Changed for the comparison: {', '.join(self.changes)}."
        if self.kind == "command":
            yield UNCOMPARED
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        yield f"{counted(self.steps, 'step')} compared, {self.seconds:.0f} s; {versions}."

    def _ordered_verdict(self) -> str:
        first, second = self.sides
        if self.same is None:
            return (
                f"Not measured, so neither the same nor another training: {'; '.join(self.unmeasured[:3])}."
            )
        if self.same:
            return f"The same training over {counted(self.steps, 'step')}: {second} and {first}."
        row = next((row for row in self.measured if row.holds is False), None)
        where = "" if row is None else f", first in the {row.measures} at step {row.step}"
        return f"Not the same training: {second} differs from {first}{where}."

    def _state(self, row: OrderedRow) -> str:
        if row.holds:
            return "the same"
        if row.holds is None:
            return f"not seen: {row.text}"
        if not row.values:
            return f"differs: {row.text}"
        return f"differs at step {row.step}: {row.values[0]} → {row.values[1]}"


def _both(values: Sequence[str], labels: Sequence[str]) -> str:
    """Writes the values of both sides."""
    return " and ".join(f"{value} with {label}" for value, label in zip(values, labels, strict=True))


def shown(value: Any) -> str:
    """Writes a setting."""
    return "none" if value is None else str(value)


def answer_of(
    words: Sequence[str],
    comparison: OrderedComparison,
    sides: Sides,
    weighed: Weighed | None = None,
) -> OrderedSame:
    """Makes the answer of two environments; of two commands, without `weighed`."""
    kind: Literal["release", "command"] = "release" if weighed else "command"
    row, (reference, second, labels) = comparison.first, sides
    causes, rows = [], [*comparison.rows]
    if row is not None:
        text = f"{row.text}, at step {row.step}: {_both(row.values, labels)}"
        if weighed and weighed.row.values:
            text += f"; samples weigh {_both(weighed.row.values, labels)}"
        causes = [SplitCause(f"{kind}_{row.id}", row.measures, text, row.remedy, PAGES[kind])]
    if weighed:
        causes += weighed.causes
        rows.insert(1 + next(at for at, row in enumerate(rows) if row.id == "gradient"), weighed.row)
    changes = sorted({change for run in (reference, second) for change in run.changes})
    if any(step.first.norms for step in reference.steps.values()):
        changes.append("clipping measured and not applied")
    versions = reference.last.first.versions
    theirs = second.last.first.versions
    return OrderedSame(
        kind=kind,
        same=comparison.same,
        sides=labels,
        measured=rows,
        settings=comparison.settings,
        causes=causes,
        command=list(words),
        reference=labels[0],
        splits=[],
        changes=changes,
        unasked={},
        noise=0.0,
        tolerance=0.0,
        steps=comparison.steps,
        versions={
            name: version if theirs.get(name, version) == version else f"{version} → {theirs[name]}"
            for name, version in versions.items()
        },
        seconds=0.0,
    )
