"""Whether the workload can be computed at all: what cannot is refused in one line, before anything else is looked at."""

from __future__ import annotations

from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.verdict import Proof
from isobatch.validate.step.trying import check
from isobatch.validate.trial import Trial


def prove(trial: Trial) -> list[Proof]:
    """Nothing: it goes through, or the validation ends."""
    with trial.training.weights_kept():
        check(trial.training)
    return []


CLAIM = Claim(phase="workload", names=(), prove=prove)
