"""The comparison of two gradients, whoever asks: four sums over their entries, as a value."""

import math
from typing import NamedTuple, Self

from isobatch.equivalence.records import Vector


class Likeness(NamedTuple):
    """A gradient, or a change of weights, beside its reference.

    The sums add up over tensors, and over ranks that hold a part each.

    Attributes:
        off: squares of the differences.
        own: squares of the gradient.
        along: products of the gradient and the reference.
        reference: squares of the reference.

    >>> import numpy as np
    >>> like = Likeness.of(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    >>> round(like.error, 3), round(like.ratio, 3)
    (0.1, 1.08)
    """

    off: float
    own: float
    along: float
    reference: float

    @classmethod
    def of(cls, own: Vector, reference: Vector) -> Self:
        """Compares two sketches."""
        difference = own - reference
        return cls(
            *(float(a @ b) for a, b in ((difference,) * 2, (own,) * 2, (own, reference), (reference,) * 2))
        )

    @property
    def error(self) -> float:
        """The relative L2 distance; infinite if only the reference is 0."""
        if not self.reference:
            return 0.0 if self.off == 0 else math.inf
        return math.sqrt(self.off / self.reference)

    @property
    def ratio(self) -> float:
        """The size along the reference, as a multiple of it."""
        return self.along / self.reference if self.reference else math.nan

    @property
    def residual(self) -> float:
        """The part of the gradient in another direction."""
        if not self.own or not self.reference:
            return math.nan
        # In this order NaN stays NaN.
        return math.sqrt(max(1 - self.along * self.along / (self.own * self.reference), 0.0))

    def without(self, own: float, reference: float, square: float) -> Self:
        """Leaves out the part along a vector, by the products of both with it, and its own square."""
        part = 1 / square if square else 0.0
        return self._replace(
            own=self.own - own * own * part,
            along=self.along - own * reference * part,
            reference=self.reference - reference * reference * part,
        )
