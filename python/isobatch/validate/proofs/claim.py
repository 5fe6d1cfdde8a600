"""What a file of this folder declares: the claims of the plan that it proves, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isobatch.validate.options import Options
from isobatch.validate.report.verdict import Proof
from isobatch.validate.trial import Trial


def _always(_: Options) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A part of a validation. All ranks run it together, within one time limit.

    Args:
        phase: what it is called where a rank is lost in it.
        names: of the proofs that it may give, without a number format behind them, in the order of the table.
        prove: gives the proofs, equal on all ranks; figures go into the trial.
        wanted: whether the options ask for it.
        connected: whether it needs the ranks' connections: what does not is proven before they are made, which may hang.
        decisive: whether nothing after it makes sense once one of its proofs has failed.
    """

    phase: str
    names: tuple[str, ...]
    prove: Callable[[Trial], list[Proof]]
    wanted: Callable[[Options], bool] = _always
    connected: bool = True
    decisive: bool = False
