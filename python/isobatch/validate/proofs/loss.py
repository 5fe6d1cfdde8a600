"""What the workload's loss does over a batch."""

from __future__ import annotations

import torch

from isobatch.validate.report.report import Proof, Verdict
from isobatch.validate.step.training import Training, full_precision
from isobatch.validate.step.workload import part

SEED = 20


def reduction(training: Training) -> str:
    """What the loss does over a batch, by cutting one in two: "mean", "sum" or "neither"."""
    workload, n = training.workload, max(2, min(8, training.micro_batch))
    batch = training.samples(n, SEED, 0, 0)
    cut = n // 2 if n == 2 else n // 2 - 1
    parts = [part(batch, 0, cut), part(batch, cut, n)]
    units = [cut, n - cut] if workload.weight is None else [float(workload.weight(p)) for p in parts]
    model = training.model.eval()
    with torch.no_grad(), full_precision():
        whole, *losses = (float(workload.loss(model, b)) for b in [batch, *parts])
    mean = sum(u * loss for u, loss in zip(units, losses, strict=True)) / sum(units)
    near = {"mean": abs(whole - mean), "sum": abs(whole - sum(losses))}
    best = min(near, key=near.__getitem__)
    return best if near[best] <= 1e-3 * abs(whole) else "neither"


def prove(training: Training) -> tuple[str, Proof]:
    """Whether the loss is what the workload declares, and what it is."""
    measured, declared = reduction(training), training.workload.reduction
    if measured == declared:
        return measured, Proof(
            name="loss", verdict=Verdict.PASS, text=f"a {measured} over the batch, as declared"
        )
    if measured == "neither":
        text = "neither a mean nor a sum over samples: declare `weight`, what it is a mean over"
        return measured, Proof(
            name="loss", verdict=Verdict.CAUTION, text=text, cause="a loss weighted otherwise"
        )
    cause = "summed loss" if measured == "sum" else "mean loss"
    return measured, Proof(
        name="loss", verdict=Verdict.FAIL, text=f"a {measured}, declared a {declared}", cause=cause
    )
