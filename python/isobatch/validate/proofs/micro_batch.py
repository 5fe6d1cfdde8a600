"""The largest micro-batch that fits, where it is asked for."""

from __future__ import annotations

from isobatch.diagnosis.causes import Cause
from isobatch.validate.measure import memory
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.figures import MicroBatchSearch
from isobatch.validate.report.verdict import Proof, Verdict
from isobatch.validate.step.training import Training
from isobatch.validate.trial import Trial


def prove_search(training: Training, found: MicroBatchSearch) -> Proof:
    """What a search has found."""
    largest = found.largest_micro_batch
    if largest is None:  # noise: the planned one has fitted before
        text = f"nothing fits below micro-batch {found.tries[-1].micro_batch}"
        return Proof(
            name="micro_batch",
            verdict=Verdict.FAIL,
            text=text,
            diagnosis=Cause.OUT_OF_MEMORY.likely(),
        )
    best = next(one for one in found.tries if one.micro_batch == largest)
    text = f"{'' if found.complete else 'at least '}{largest} samples fit, {best.peak_memory_bytes / 2**30:.3g} GiB"
    if best.fragmentation_bytes is not None:
        text += f", {best.fragmentation_bytes / 2**30:.3g} GiB of the allocator's lie idle"
    return Proof(
        name="micro_batch",
        verdict=Verdict.PASS,
        text=f"{text}{_spare(found)}; {training.micro_batch} planned, {len(found.tries)} sizes tried",
        values={
            "largest_micro_batch": largest,
            "recommended_micro_batch": found.recommended_micro_batch,
            "complete": found.complete,
        },
    )


def _spare(found: MicroBatchSearch) -> str:
    """What is said of the reserve."""
    if found.recommended_micro_batch is None:
        return "; no size that was tried leaves the GPU a reserve"
    if found.recommended_micro_batch == found.largest_micro_batch:
        return ""
    return f"; {found.recommended_micro_batch} recommended, which leave the GPU a reserve for NCCL and fragmentation"


def prove(trial: Trial) -> list[Proof]:
    """Searches, on all ranks alike."""
    with trial.training.weights_kept():
        found = memory.search(trial.training)
    trial.largest = found.largest_micro_batch or trial.largest
    trial.add(micro_batch_search=found)
    return [prove_search(trial.training, found)]


CLAIM = Claim(
    phase="micro-batch", names=("micro_batch",), prove=prove, wanted=lambda options: options.find_micro_batch
)
