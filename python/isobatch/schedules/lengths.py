"""Lengths in a schedule's text, and what they are worth in a plan."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import msgspec

from isobatch import _core
from isobatch.errors import missing


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """What the units of a length are worth in a plan.

    `tuned_batch` samples are one `st` of the recipe; `batch` samples one step of the plan; `steps_per_epoch` steps
    one `ep`, or where they are not known (as for a trainer without epochs), `dataset_size` samples; `seq_len` tokens
    one sample.
    """

    tuned_batch: int
    batch: int
    steps_per_epoch: float | None = None
    dataset_size: int | None = None
    seq_len: int | None = None


class Length(NamedTuple):
    """An exact number and its unit: st, ep, sp, tok or %."""

    value: Fraction
    unit: str

    @classmethod
    def read(cls, text: str) -> Length | None:
        """The length that a text such as "30ep" is, by the core's own parser; None where it is none.

        >>> Length.read("28.43%")
        Length(value=Fraction(2843, 100), unit='%')
        """
        read = _core.length(text)
        return None if read is None else cls(Fraction(read[0], read[1]), read[2])

    def steps(self, units: Units, total_steps: float) -> int:
        """Optimizer steps of the plan: rounded half up, a share of the run floored."""
        if self.unit == "%":
            return int(self.value * Fraction(total_steps) / 100)
        if self.unit == "ep" and units.steps_per_epoch is not None:
            return int(self.value * Fraction(units.steps_per_epoch) + Fraction(1, 2))
        return int(self.value * self._samples(units) / units.batch + Fraction(1, 2))

    def _samples(self, units: Units) -> Fraction:
        """Samples that one of the unit is worth."""
        if self.unit == "ep":
            if units.dataset_size is None:
                raise missing("dataset_size", "the schedule has a length in ep")
            return Fraction(units.dataset_size)
        if self.unit == "tok":
            if units.seq_len is None:
                raise missing("seq_len", "the schedule has a length in tok")
            return Fraction(1, units.seq_len)
        return Fraction(units.tuned_batch if self.unit == "st" else 1)
