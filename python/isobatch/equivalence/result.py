"""The answer: whether a training is the same at every split, as a value, text and an error of a test."""

import math
import os
from collections.abc import Iterator
from typing import Any, Self

import msgspec

from isobatch.equivalence.compare import OF_RANKS, SplitResult
from isobatch.equivalence.evidence import WITHOUT_GRADIENT, Measured
from isobatch.equivalence.laws import SplitCause
from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole, save_json
from isobatch.words import counted

SCHEMA = "isobatch.equivalence/2"

BY_UPDATE = (
    "Measured by the update: the engine keeps gradients to itself, so that each was put in the place of its "
    "weight once, and read there; the other steps are the optimizer's own."
)
WIDTH = 24
"""Samples whose weights a line shows."""


class Same(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a training is the same at every split of its batch.

    Attributes:
        schema: of the JSON that `save` writes.
        same: whether no split differs from the whole batch in one pass; None where too little was measured.
        measured: the table of what must be measured, each with its state.
        measured_by: "gradient"; "update" where an engine keeps gradients to itself.
        command: as it was typed.
        across: the sizes of a mesh's dimensions; empty where splits are compared.
        reference: the split that the others are compared with, or "without" a mesh.
        splits: a result for each split, or mesh.
        changes: what the runs changed in the script, such as dropout that was off.
        unasked: splits that could not be run, each with the reason.
        noise: relative distance of the gradients of the requested split, run twice.
        tolerance: relative distance that counts as rounding.
        steps: optimizer steps that were compared.
        versions: of the libraries that the script imported.
        seconds: that all runs took.
    """

    schema: str = SCHEMA
    same: bool | None
    measured: list[Measured]
    measured_by: str = "gradient"
    command: list[str]
    across: dict[str, int] = {}
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

    @property
    def cause(self) -> SplitCause | None:
        """The likeliest cause at the first differing split; None without one."""
        return next((cause for split in self.splits for cause in split.causes), None)

    @property
    def weights(self) -> dict[str, list[float]]:
        """The weight of each sample in the gradient, by split; empty where no weights explain it."""
        return {split.split: split.weights for split in self.splits}

    @property
    def unmeasured(self) -> list[str]:
        """Why the training is not called the same although no split differs."""
        texts = [row.text for row in self.measured if row.holds is None and row.text != WITHOUT_GRADIENT]
        return [*dict.fromkeys(texts)] or [
            f"{split} was not compared: {reason}" for split, reason in self.unasked.items()
        ]

    def require(self) -> None:
        """Passes where the training is the same.

        Raises:
            AssertionError: it is not, or that was not measured; the message is the table.
        """
        if self.same is not True:
            raise AssertionError(self.text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the answer as JSON, whole or not at all."""
        save_json(path, msgspec.json.format(msgspec.json.encode(self), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads an answer of `save`; an InputError if the file holds none of this version."""
        try:
            content: Any = msgspec.json.decode(read_whole(path))
            schema = content.get("schema") if isinstance(content, dict) else None
            kinds = {_schema(kind): kind for kind in (cls, *cls.__subclasses__())}
            if schema not in kinds:
                expected = " or ".join(repr(name) for name in kinds)
                raise must_be(expected, schema, file=str(path), field="schema")
            return msgspec.convert(_with_nan(content), kinds[schema])
        except msgspec.MsgspecError as error:
            raise InputError(f"not an answer of this version: {error}", file=str(path)) from None

    def lines(self) -> Iterator[str]:
        """Yields the verdict, the table of splits, the causes with their remedies, and the runs' changes."""
        yield self._verdict()
        yield ""
        head = ("ranks × accumulation × micro-batch", "weight of each sample", "gradient", "learning rate")
        if self.across:
            head = ("mesh", "norm that clipping sees", "gradient", "learning rate")
        rows = [head, *(self._row(split) for split in self.splits)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)]
            yield f"  {'  '.join(cells).rstrip()}"
        for name, reason in self.unasked.items():
            yield f"  {name.replace('x', ' × ')}  not compared: {reason}"
        yield from self._causes()
        notes: dict[str, list[str]] = {}
        for split in self.splits:
            for note in split.notes:
                notes.setdefault(note, []).append(split.split)
        if notes:
            yield ""
        for note, splits in notes.items():
            yield f"{', '.join(splits)}: {note}. That is the same training."
        if self.changes:
            yield ""
            yield f"Changed for the comparison: {', '.join(self.changes)}."
        if self.measured_by == "update":
            yield BY_UPDATE
        yield from (
            f"The end of an epoch: {row.text}." for row in self.measured if row.id == "end" and row.holds
        )
        yield f"Not compared: {self._uncompared()}."
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        yield f"{counted(self.steps, 'step')}, {self.seconds:.0f} s; {versions}."

    def _uncompared(self) -> str:
        """Lists in one line the limits of the answer."""
        end = next((row for row in self.measured if row.id == "end"), None)
        also = "the next epoch's order (set_epoch) or a checkpoint"
        also = f"the end of an epoch, {also}" if end is None else also
        parts = [f"what follows after {counted(self.steps, 'step')}, such as {also}"]
        if self.same and not self.across and any(not split.weights for split in self.splits):
            parts.append("the weights of single samples, whose gradients are too alike or not to be had")
        parts += [
            row.measures + (f" ({row.text})" if row is end else "")
            for row in self.measured
            if row.holds is None
        ]
        return "; ".join(parts)

    def _verdict(self) -> str:
        wrong = [split for split in self.splits if not split.same]
        if self.same is None:
            return f"Not measured, so neither the same nor another training: {'; '.join(self.unmeasured)}."
        if self.across:
            meshes = counted(len(self.splits), "mesh", "meshes")
            if not wrong:
                return (
                    f"The same training at {meshes} as without: gradient, norm and update of the first step."
                )
            differ = "differs" if len(wrong) == 1 else "differ"
            return f"Not the same training: {len(wrong)} of {meshes} {differ} from the run without."
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
        if self.across:
            weights = " ".join(f"{norm:.4g}" for norm in split.norms) or "none"
        elif split.weights:
            weights = weights_text(split.weights)
        elif split.residual is None:
            weights = "not known"
        else:
            weights = f"no weights fit: {split.residual:.0%} remains"
        rates = " ".join(f"{rate:.6g}" for rate in split.lrs)
        finite = math.isfinite(split.difference)
        gradient = f"differs by {split.difference:.1e}" if finite else "not finite"
        if any(cause.id in OF_RANKS for cause in split.causes):
            gradient = f"the ranks' mean {gradient}"
        return split.split.replace("x", " × "), weights, gradient, rates

    def _causes(self) -> Iterator[str]:
        """Yields each cause once, with its splits."""
        causes: dict[tuple[str, str, str], dict[str, list[str]]] = {}
        for split in self.splits:
            for cause in split.causes:
                text = f"at step {split.step}, {cause.text}" if split.step else cause.text
                causes.setdefault((cause.name, cause.remedy, cause.page), {}).setdefault(text, []).append(
                    split.split
                )
        for (name, remedy, page), texts in causes.items():
            yield ""
            yield name
            for text, splits in texts.items():
                yield f"  {', '.join(splits)}: {text}"
            yield f"  → {remedy}" + (f" (docs/{page})" if page else "")


def _schema(kind: type[Same]) -> str:
    """Returns the schema of a kind of answer."""
    return str(next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema"))


def _with_nan(content: Any) -> Any:
    """Puts NaN in the place of null where an answer always has a number: JSON has no NaN."""
    splits = [split for split in content.get("splits", ()) if isinstance(split, dict)]
    groups = [group for split in splits for group in split.get("groups", ()) if isinstance(group, dict)]
    for table in (content, *splits, *groups):
        table |= {
            name: float("nan")
            for name in ("noise", "tolerance", "difference", "factor")
            if name in table and table[name] is None
        }
        if isinstance(table.get("norms"), list):
            table["norms"] = [float("nan") if norm is None else norm for norm in table["norms"]]
    return content


def weights_text(weights: list[float]) -> str:
    """Shows the weights of samples: one number where they are alike.

    >>> weights_text([1.0000001, 1.0]), weights_text([1.002, 1.0]), weights_text([4.2, 3.6])
    ('1.0000', '1.00', '4.20 3.60')
    """
    if max(weights) - min(weights) < 1e-3 * max(1e-9, *map(abs, weights)):
        return f"{sum(weights) / len(weights):.4f}"
    rounded = [f"{weight:.2f}" for weight in weights]
    if len({*rounded}) == 1:
        return rounded[0]
    shown = " ".join(rounded[:WIDTH])
    return shown if len(weights) <= WIDTH else f"{shown} … ({len(weights)} samples)"
