"""How a claim of the plan came out."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from isobatch.diagnosis.causes import Cause, Diagnosis
from isobatch.validate.options import Options
from isobatch.validate.report.figures import Part


class Verdict(StrEnum):
    """How a proof came out. The order is the one in which they win over each other in the whole.

    `fail` and `inconclusive` (the host was too noisy to tell) end with exit code 1; `caution`, `pass` and `unchecked`
    (not looked at, and why is said) with 0.
    """

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    CAUTION = "caution"
    PASS = "pass"
    UNCHECKED = "unchecked"

    @classmethod
    def of(cls, verdicts: list[Verdict]) -> Verdict:
        """The verdict of the whole.

        >>> Verdict.of([Verdict.PASS, Verdict.UNCHECKED, Verdict.CAUTION]).value
        'caution'
        """
        return next((verdict for verdict in cls if verdict in verdicts), cls.UNCHECKED)

    @classmethod
    def by(cls, off: float, options: Options) -> Verdict:
        """The verdict on a figure that is off by such a fraction.

        >>> Verdict.by(0.2, Options(caution=0.1, fail=0.25)).value
        'caution'
        """
        return cls.FAIL if off > options.fail else cls.CAUTION if off > options.caution else cls.PASS


class Proof(Part, frozen=True, kw_only=True):
    """One claim of the plan and how it came out.

    `values` are the figures behind it, with units in their names; `gate` is the largest value that passes, where there is
    one; `diagnosis` says what most likely went wrong, and `.cause` is its likeliest cause.
    """

    name: str
    verdict: Verdict
    text: str
    diagnosis: Diagnosis | None = None
    gate: float | None = None
    values: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def cause(self) -> Cause | None:
        """The likeliest cause; None where nothing is wrong."""
        return None if self.diagnosis is None else self.diagnosis.cause


def unchecked(name: str, text: str, **values: Any) -> Proof:
    """A claim that was not looked at, and why."""
    return Proof(name=name, verdict=Verdict.UNCHECKED, text=text, values=values)
