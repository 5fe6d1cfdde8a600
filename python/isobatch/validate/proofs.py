"""What the loss does over a batch; and the learning rate, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from isobatch.integrations.torch import PlanLR
from isobatch.validate import causes
from isobatch.validate.report import Proof, Verdict
from isobatch.validate.training import Training, full_precision
from isobatch.validate.workload import part

SEED = 20


class Difference:
    """How far some tensors are from a reference: `error` is relative L2, `ratio` how many times too large they are along
    it, `residual` what such a factor leaves unexplained, relative to them."""

    def __init__(self, found: Iterable[Tensor], reference: Iterable[Tensor]) -> None:
        off = ff = fr = rr = 0.0
        for f, r in zip(found, reference, strict=True):
            f, r = f.detach().double().flatten(), r.detach().double().flatten()
            off += float((f - r).square().sum())
            ff += float(f @ f)
            fr += float(f @ r)
            rr += float(r @ r)
        self.error = math.sqrt(off / rr) if rr else (0.0 if not ff else math.inf)
        self.ratio = fr / rr if rr else math.nan
        self.residual = math.sqrt(max(0.0, 1 - fr * fr / (ff * rr))) if ff and rr else math.nan
        self.norm = math.sqrt(ff)


def reduction(training: Training, dtype: torch.dtype | None = None) -> str:
    """What the loss does over a batch, by cutting one in two: "mean", "sum" or "neither"."""
    workload, n = training.workload, max(2, min(8, training.micro_batch))
    batch = training.samples(n, SEED, 0, 0, dtype)
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


def prove_reduction(training: Training) -> tuple[str, Proof]:
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


def prove_learning_rate(training: Training) -> Proof:
    """The learning rate of the real optimizer under the real scheduler at each step, against the plan's."""
    plan, limit = training.plan, {"quick": 2_000, "usual": 10_000, "full": 1_000_000}[training.options.extent]
    if plan.total_steps is None or plan.lr is None:
        return Proof(name="learning_rate", verdict=Verdict.UNCHECKED, text="the recipe has no duration")
    optimizer = training.workload.optimizer([nn.Parameter(torch.zeros(2, 2))])
    started = float(optimizer.param_groups[0]["lr"])
    own = training.workload.scheduler
    scheduler = own(optimizer) if own is not None else PlanLR(optimizer, plan)
    steps = min(limit, plan.total_steps)
    observed = []
    for _ in range(steps):
        observed.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    fault = causes.learning_rate(
        observed,
        plan.lr_at,
        peak=plan.lr,
        accumulation=plan.accumulation or 1,
        ranks=plan.data_parallel or 1,
        initial=started if own is not None else None,
    )
    worst = max(abs(lr - plan.lr_at(step)) for step, lr in enumerate(observed))
    values = {"steps": steps, "worst_difference": worst}
    gate = causes.ULPS * 2.0**-52 * plan.lr
    if fault is not None:
        step, cause = fault
        text = f"{observed[step]:.6g} at step {step}, {plan.lr_at(step):.6g} planned"
        return Proof(
            name="learning_rate", verdict=Verdict.FAIL, text=text, cause=cause, gate=gate, values=values
        )
    if own is None and not causes.close(started, plan.lr, plan.lr):
        return Proof(
            name="learning_rate",
            verdict=Verdict.FAIL,
            text=f"the optimizer is made with {started:g}, and the workload names no scheduler that sets the plan's "
            f"{plan.lr:g}",
            cause=f"another learning rate, {started / plan.lr:.4g}× the plan's",
            gate=gate,
            values=values,
        )
    text = f"as planned at the first {steps} of {plan.total_steps} steps"
    return Proof(name="learning_rate", verdict=Verdict.PASS, text=text, gate=gate, values=values)
