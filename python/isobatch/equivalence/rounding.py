"""Differences by rounding, measured on two runs of one split.

In the second run each gradient gets noise of the size of rounding after it was recorded: what an optimizer
makes of it in the next steps is what it makes of another order of summation.
"""

from typing import Self

import msgspec

from isobatch.equivalence.records import Recording
from isobatch.equivalence.weights import distance

EXACT = 1e-4
"""Relative distance of two gradients that is rounding in float32."""
HALF = 3e-2
"""The same where parameters are bfloat16 or float16."""
TIMES = 10.0
"""A difference may be this many times the one that was measured."""
SHAKE = 1e-6
"""The relative noise that the recorder adds (of float32)."""
MOST = 0.05
"""Rounding from which two runs of one split are not the same training."""


class Rounding(msgspec.Struct, frozen=True, kw_only=True):
    """Distances between two runs of a split.

    Attributes:
        exact: the least tolerance, by the precision of the parameters.
        gradients: of the gradient, by step, relative L2; the first is of equal weights.
        updates: of the weights' change over all steps, by optimizer.
    """

    exact: float
    gradients: list[float]
    updates: dict[int, float]

    @classmethod
    def between(cls, first: Recording, second: Recording) -> Self:
        """Measures the noise between two runs, of the first optimizer's gradient and all weights."""
        optimizer = next(iter(first.steps))[0]
        gradients = []
        for event, step in first.steps.items():
            repeat = second.steps.get(event)
            if event[0] != optimizer:
                continue
            if repeat is None or repeat.gradients.shape != step.gradients.shape:
                gradients.append(float("inf"))
            else:
                gradients.append(distance(repeat.gradients[0], step.gradients[0]))
        updates = {}
        for number in {number for number, _ in first.steps}:
            update, repeated = first.update(number), second.update(number)
            if update is not None and repeated is not None and update.shape == repeated.shape:
                updates[number] = distance(repeated, update)
        half = first.last.first.half
        return cls(exact=HALF if half else EXACT, gradients=gradients, updates=updates)

    def gradient(self, step: int, difference: float) -> float:
        """Returns the largest relative distance of a step's gradient by rounding.

        `difference` is that of the first step, which may be more than the noise that was added.
        """
        measured = self.gradients[step] if step < len(self.gradients) else 0.0
        return max(self.exact, TIMES * measured * (self._grown(difference) if step else 1.0))

    def update(self, optimizer: int, difference: float) -> float:
        """Returns the largest relative distance of the weights' change by rounding."""
        return max(TIMES * self.exact, TIMES * self.updates.get(optimizer, 0.0) * self._grown(difference))

    def _grown(self, difference: float) -> float:
        return max(1.0, difference / (self.exact * SHAKE / EXACT))
