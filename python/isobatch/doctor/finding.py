"""Something about a configuration that its author may not have meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from isobatch.planning.plan import Plan
from isobatch.tools.reading.page import Found
from isobatch.tools.reading.readers import reader


class Finding(NamedTuple):
    """What happens, why, who says so, and the line to change.

    Attributes:
        source: a document, an issue, or the place in the tool's own code.
    """

    what: str
    cause: str
    source: str
    change: str

    def __str__(self) -> str:
        return f"{self.what}\n  cause: {self.cause} [{self.source}]\n  change: {self.change}"


_ALIASES = {"batch_per_gpu": "micro_batch", "micro_batch": "batch_per_gpu"}
_WORDS = {
    "accumulation": "micro-batches in a step",
    "batch_per_gpu": "the batch per GPU",
    "duration": "the run's length",
    "effective_batch": "the global batch",
    "lr": "the learning rate",
    "micro_batch": "the batch per GPU",
    "warmup": "the warmup",
}
"""Never a field of ours, which no tool's file has."""


class Case(NamedTuple):
    """What the checks look at.

    Attributes:
        found: what the file says; its fields with those that were given.
        gpus: where it is to run.
        batch: samples in a step there, as the file is; None where it does not say.
        tuned: samples in a step of the tuned run; None where its GPUs are not known.
        plan: how to train the same there; None where the recipe is not known, or cannot be trained there.
    """

    found: Found
    fields: Mapping[str, Any]
    gpus: int
    batch: int | None
    tuned: int | None
    plan: Plan | None

    def at(self, *path: str) -> Any:
        """A value of the file, by its place there; None where there is none."""
        value: Any = self.found.settings
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def replicas(self) -> int:
        """Copies of the model on the GPUs."""
        return self.gpus // (self.fields.get("model_parallel") or 1)

    def key(self, field: str) -> str:
        """What the file calls a field of the recipe; where it does not say it, what its tool calls it, else plain words."""
        keys = self.found.keys
        alias = keys.get(_ALIASES[field]) if field in _ALIASES else None
        called: Mapping[str, str] = getattr(reader(self.found.tool), "CALLED", {})
        return keys.get(field) or alias or called.get(field) or _WORDS[field]

    def line(self, field: str, value: Any) -> str:
        """The line with another value."""
        key = self.key(field)
        return f"{key} {value}" if key.startswith("--") else f"{key}: {value}"

    @property
    def growth(self) -> float:
        """The batch as it is over the tuned one; 1 where one of them is not known."""
        return 1.0 if self.batch is None or self.tuned is None else self.batch / self.tuned


def number(value: Any) -> float:
    """A setting as a number; 0 where it is none.

    >>> number(3), number("3"), number(None)
    (3.0, 0.0, 0.0)
    """
    return float(value) if isinstance(value, int | float) else 0.0
