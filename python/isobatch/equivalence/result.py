"""The answer: whether a training is the same at every split, as a value, text and an error of a test."""

import os
from collections.abc import Iterator
from typing import Any, Self

import msgspec

from isobatch.equivalence.compare import SplitResult
from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole, write_whole
from isobatch.words import counted

SCHEMA = "isobatch.equivalence/1"

WIDTH = 24
"""Samples whose weights a line shows."""


class Same(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a training is the same at every split of its batch.

    Attributes:
        schema: of the JSON that `save` writes.
        same: whether no split differs from the whole batch in one pass.
        command: as it was typed.
        reference: the split that the others are compared with.
        splits: a result for each split.
        changes: what the runs changed in the script, such as dropout that was off.
        unasked: splits that could not be run, each with the reason.
        noise: relative distance of the gradients of the requested split, run twice.
        tolerance: relative distance that counts as rounding.
        steps: optimizer steps that were compared.
        versions: of the libraries that the script imported.
        seconds: that all runs took.
    """

    schema: str = SCHEMA
    same: bool
    command: list[str]
    reference: str
    splits: list[SplitResult]
    changes: list[str]
    unasked: dict[str, str]
    noise: float
    tolerance: float
    steps: int
    versions: dict[str, str]
    seconds: float

    @property
    def text(self) -> str:
        """The answer in lines for a terminal."""
        return "\n".join(self.lines())

    def require(self) -> None:
        """Passes where the training is the same.

        Raises:
            AssertionError: it is not; the message is the table.
        """
        if not self.same:
            raise AssertionError(self.text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the answer as JSON, whole or not at all."""
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads an answer of `save`; an InputError if the file holds none of this version."""
        try:
            content: Any = msgspec.json.decode(read_whole(path))
            schema = content.get("schema") if isinstance(content, dict) else None
            if schema != SCHEMA:
                raise must_be(repr(SCHEMA), schema, file=str(path), field="schema")
            return msgspec.convert(content, cls)
        except msgspec.MsgspecError as error:
            raise InputError(f"not an answer of this version: {error}", file=str(path)) from None

    def lines(self) -> Iterator[str]:
        """Yields the verdict, the table of splits, the causes with their mends, and the runs' changes."""
        yield self._verdict()
        yield ""
        head = ("ranks × accumulation × micro-batch", "weight of each sample", "gradient", "learning rate")
        rows = [head, *(self._row(split) for split in self.splits)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)]
            yield f"  {'  '.join(cells).rstrip()}"
        for name, reason in self.unasked.items():
            yield f"  {name.replace('x', ' × ')}  not compared: {reason}"
        yield from self._causes()
        rates = [rate for split in self.splits for rate in split.lrs]
        if rates and not any(rates):
            yield ""
            yield (
                "The learning rate is 0 at each step, so that no weight changes. Does the script continue "
                "from a checkpoint, or a finished run? Move it away, and ask again."
            )
        if self.changes:
            yield ""
            yield f"Changed for the comparison: {', '.join(self.changes)}."
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        yield f"{counted(self.steps, 'step')}, {self.seconds:.0f} s; {versions}."

    def _verdict(self) -> str:
        wrong = [split for split in self.splits if not split.same]
        if not wrong:
            return (
                f"The same training at {counted(len(self.splits) + 1, 'split')} of a batch of "
                f"{self.splits[0].samples}."
            )
        return (
            f"Not the same training: {len(wrong)} of {counted(len(self.splits), 'split')} "
            f"{'differs' if len(wrong) == 1 else 'differ'} from one pass over the batch ({self.reference})."
        )

    def _row(self, split: SplitResult) -> tuple[str, str, str, str]:
        if split.weights:
            weights = _weights_text(split.weights)
        elif split.residual is None:
            weights = "not known"
        else:
            weights = f"no weights fit: {split.residual:.0%} remains"
        rates = " ".join(f"{rate:.4g}" for rate in split.lrs)
        return split.split.replace("x", " × "), weights, f"differs by {split.difference:.1e}", rates

    def _causes(self) -> Iterator[str]:
        """Yields each cause once, with its splits."""
        causes: dict[tuple[str, str], dict[str, list[str]]] = {}
        for split in self.splits:
            for cause in split.causes:
                text = f"at step {split.step}, {cause.text}" if split.step else cause.text
                causes.setdefault((cause.name, cause.mend), {}).setdefault(text, []).append(split.split)
        for (name, mend), texts in causes.items():
            yield ""
            yield name
            for text, splits in texts.items():
                yield f"  {', '.join(splits)}: {text}"
            yield f"  → {mend}"


def _weights_text(weights: list[float]) -> str:
    """Shows the weights of samples: one number where they are alike.

    >>> _weights_text([1.0000001, 1.0]), _weights_text([4.2, 3.6])
    ('1.0000', '4.20 3.60')
    """
    if max(weights) - min(weights) < 1e-3 * max(1e-9, *map(abs, weights)):
        return f"{sum(weights) / len(weights):.4f}"
    shown = " ".join(f"{weight:.2f}" for weight in weights[:WIDTH])
    return shown if len(weights) <= WIDTH else f"{shown} … ({len(weights)} samples)"
