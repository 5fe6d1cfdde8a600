"""Whether the planned micro-batch fits on every rank."""

from __future__ import annotations

from isobatch.diagnosis.causes import Cause
from isobatch.validate.measure import memory
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.verdict import Proof, Verdict
from isobatch.validate.step.training import Training
from isobatch.validate.trial import Trial


def prove_fits(training: Training) -> Proof | None:
    """A failed proof where the planned micro-batch does not fit on some rank, with the largest one that does."""
    planned = memory.attempt(training, training.micro_batch)
    if planned.fits:
        return None
    found = memory.search(training, ceiling=training.micro_batch)
    largest = found.largest_micro_batch
    fit = "not even one sample fits" if largest is None else f"{largest} fit"
    return Proof(
        name="memory",
        verdict=Verdict.FAIL,
        text=f"micro-batch {training.micro_batch}: {planned.fault}; {fit}",
        diagnosis=Cause.OUT_OF_MEMORY.likely(),
        values={"largest_micro_batch": largest, "peak_memory_bytes": planned.peak_memory_bytes},
    )


def prove(trial: Trial) -> list[Proof]:
    """Nothing where it fits: how much it takes is said by the step that is timed."""
    with trial.training.weights_kept():
        unfit = prove_fits(trial.training)
    return [] if unfit is None else [unfit]


CLAIM = Claim(phase="memory", names=("memory",), prove=prove, decisive=True)
