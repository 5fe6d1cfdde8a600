"""Details of a recorded step beside its gradient, as the recorder writes them."""

from typing import Any

import msgspec


class InputTensor(msgspec.Struct, frozen=True):
    """A tensor given to a pass: integer entries, else signed sums and the first entries."""

    name: str
    shape: list[int]
    dtype: str
    entries: list[int] = []
    sums: list[float] = []
    first: list[float] = []

    def row(self, number: int) -> list[int]:
        """Returns the entries of a row."""
        size = len(self.entries) // self.shape[0] if self.shape and self.shape[0] else 0
        return self.entries[number * size : (number + 1) * size]


class StepDetails(msgspec.Struct, frozen=True):
    """The parameters, the optimizer's state and the random states before a step.

    Attributes:
        shapes, dtypes, norms, trained: of each tensor, in the record's order.
        dropouts: calls since the last step, by probability.
        state: of the optimizer, by its name: the signed sum and the norm of each tensor.
        beside: buffers, averaged weights and loss scales, by name, as `state`.
        random: a digest of each generator's state, by library.
        settings: of the models, adapters and the trainer's arguments, by class and name; the first step's.
    """

    shapes: list[list[int]]
    dtypes: list[str]
    norms: list[float | None]
    trained: list[bool]
    dropouts: dict[str, int]
    state: dict[str, list[list[float | None]]]
    random: dict[str, str]
    settings: dict[str, Any] = {}
    beside: dict[str, list[list[float | None]]] = {}
