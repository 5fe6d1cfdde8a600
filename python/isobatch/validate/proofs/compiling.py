"""torch.compile, which takes minutes: in a phase of its own, so that no other one is over its limit for it."""

from __future__ import annotations

import time

from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.verdict import Proof
from isobatch.validate.step.training import out_of_memory
from isobatch.validate.trial import Trial

LIMIT_SECONDS = 900.0


def prove(trial: Trial) -> list[Proof]:
    """Nothing: how long it took is added to the limit of the phases that follow, where another size, eval mode or the all-reduce may
    have it compile again."""
    group, training = trial.group, trial.training
    group.allow(LIMIT_SECONDS)
    begun = time.monotonic()
    with training.weights_kept():
        try:
            training.lone_step(training.micro_batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):  # whether it fits is asked next
                raise
    training.model.zero_grad(set_to_none=True)
    trial.compile_seconds = max(group.slowest([time.monotonic() - begun]))
    return []


CLAIM = Claim(phase="compile", names=(), prove=prove, wanted=lambda options: options.compile)
