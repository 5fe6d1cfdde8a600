"""What the workload's loss does over a batch."""

from __future__ import annotations

import torch

from isobatch.diagnosis import batches
from isobatch.diagnosis.causes import Cause
from isobatch.diagnosis.precision import float32_as
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.verdict import Proof, Verdict
from isobatch.validate.step.training import Training
from isobatch.validate.trial import Trial

SEED = 20
ROUNDED_GATE = 0.02  # of a loss in 8 bits


def reduction(training: Training) -> str:
    """What the loss does over a batch, by cutting one in two: "mean", "sum" or "neither"."""
    workload, n = training.workload, max(2, min(8, training.micro_batch))
    batch = training.samples(n, SEED, 0, 0)
    cut = n // 2 if n == 2 else n // 2 - 1
    parts = [batches.part(batch, 0, cut), batches.part(batch, cut, n)]
    units = [cut, n - cut] if workload.weight is None else [float(workload.weight(p)) for p in parts]
    model = training.model.eval()
    gate, dtype = batches.REDUCTION_GATE, None
    while True:
        try:
            with torch.no_grad(), float32_as("ieee"):
                whole, *losses = (float(training.loss(model, b, dtype)) for b in [batch, *parts])
            break
        except RuntimeError:
            if dtype is training.dtype:
                raise
            gate, dtype = ROUNDED_GATE, training.dtype  # a workload may refuse float32
    return batches.reduction(whole, (losses[0], losses[1]), (units[0], units[1]), gate)


def judge(measured: str, declared: str) -> Proof:
    """Whether the loss is what the workload declares."""
    if measured == declared:
        return Proof(name="loss", verdict=Verdict.PASS, text=f"a {measured} over the batch, as declared")
    verdict = Verdict.CAUTION if measured == "neither" else Verdict.FAIL
    cause = {"sum": Cause.SUMMED_LOSS, "mean": Cause.MEAN_LOSS}.get(measured, Cause.LOSS_WEIGHTED)
    text = (
        f"{'neither a mean nor a sum' if measured == 'neither' else f'a {measured}'}, declared a {declared}"
    )
    return Proof(name="loss", verdict=verdict, text=text, diagnosis=cause.likely())


def prove(trial: Trial) -> list[Proof]:
    """Cuts a batch in two."""
    trial.reduction = reduction(trial.training)
    return [judge(trial.reduction, trial.workload.reduction)]


CLAIM = Claim(phase="loss", names=("loss",), prove=prove)
