"""Something about a configuration that its author may not have meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from isobatch.planning.plan import Plan
from isobatch.tools.reading.page import Found


class Finding(NamedTuple):
    """What happens, why, who says so, and the line to change; `change` is empty where nothing in the file can."""

    what: str
    cause: str
    source: str = ""
    change: str = ""

    def __str__(self) -> str:
        lines = [self.what, f"  cause: {self.cause}" + (f" [{self.source}]" if self.source else "")]
        return "\n".join([*lines, f"  change: {self.change}"] if self.change else lines)


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

    def key(self, field: str) -> str:
        """What the file calls a field of the recipe."""
        return self.found.keys.get(field) or field

    def line(self, field: str, value: Any) -> str:
        """The line with another value."""
        key = self.key(field)
        return f"{key} {value}" if key.startswith("--") else f"{key}: {value}"

    @property
    def growth(self) -> float:
        """The batch as it is over the tuned one; 1 where one of them is not known."""
        return 1.0 if self.batch is None or self.tuned is None else self.batch / self.tuned
