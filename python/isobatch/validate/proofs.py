"""What one step does, against one process on the whole batch; and the learning rate, step by step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from isobatch.integrations.torch import PlanLR
from isobatch.validate import causes
from isobatch.validate.report import Proof, Verdict
from isobatch.validate.training import Training, checksum, differing, full_precision, state
from isobatch.validate.workload import part

GATES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
HOOK_GATES = {"none": 0.0, "fp16": 5e-3, "bf16": 1e-2}
UPDATE_GATE = 1e-3
LOSS_SCALE = 65536.0
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


def grads(model: nn.Module) -> list[Tensor]:
    """The gradients of a model's parameters; zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]


def reduction(training: Training, dtype: torch.dtype | None = None) -> str:
    """What the loss does over a batch, by cutting one in two: "mean", "sum" or "neither"."""
    workload, n = training.workload, max(2, min(8, max(map(max, training.sizes))))
    batch = training.samples(n, SEED, 0, 0, dtype)
    cut = n // 2 if n == 2 else n // 2 - 1
    parts = [part(batch, 0, cut), part(batch, cut, n)]
    units = [cut, n - cut] if workload.weight is None else [float(workload.weight(p)) for p in parts]
    model = copy.deepcopy(training.model).eval()
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


class Reference:
    """One process on the whole batch, on rank 0 only: `model` has the true mean's gradient."""

    def __init__(
        self,
        training: Training,
        measured: str,
        dtype: torch.dtype | None,
        amp: torch.dtype | None,
        scale: float,
    ) -> None:
        self.model = copy.deepcopy(training.model)
        self.model.zero_grad(set_to_none=True)
        workload = training.workload
        everything = [
            (n, training.samples(n, SEED, rank, index, dtype))
            for rank, sizes in enumerate(training.sizes)
            for index, n in enumerate(sizes)
        ]
        units = [n if workload.weight is None else float(workload.weight(batch)) for n, batch in everything]
        for (_, batch), unit in zip(everything, units, strict=True):
            share = 1 / sum(units) if measured == "sum" else unit / sum(units)
            loss: Any = training.loss(self.model, batch, amp) * share * scale
            loss.backward()
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad /= scale


def prove_gradient(
    training: Training, measured: str, amp: torch.dtype | None, dtype: torch.dtype | None = None
) -> list[Proof]:
    """The gradient of one step, and the weights after it, against one process; and the ranks against each other.

    Args:
        measured: what the loss does over a batch.
        amp: the format of autocast, or None.
        dtype: the format of model and batch where it is not their own.
    """
    group, hook = training.group, training.options.hook
    format_name = str(amp or dtype or torch.float32).removeprefix("torch.")
    suffix = "" if amp is None and dtype is None else f"_{format_name}"
    gate = max(GATES[amp or dtype or torch.float32], HOOK_GATES[hook])
    scaler = training.scaler() if amp is not None else None
    batches = training.micro_batches(SEED, dtype=dtype)
    weights = training.weights(batches)
    training.model.eval()  # without dropout; batch norm then uses its running statistics
    optimizer = training.optimizer(training.model)
    with full_precision():
        optimizer.zero_grad(set_to_none=True)
        training.backward(batches, weights, sync=False, dtype=amp)
        finite = all(bool(torch.isfinite(g).all()) for g in grads(training.model))
        broken = [rank for rank, good in enumerate(group.gather(finite)) if not good]
        if broken:
            named = ", ".join(map(group.pulse.who, broken))
            return [
                Proof(
                    name="gradient" + suffix,
                    verdict=Verdict.FAIL,
                    text=f"not finite before the all-reduce on {named}",
                    cause=f"NaN or infinite gradient on {named}",
                )
            ]
        optimizer.zero_grad(set_to_none=True)
        before = [p.detach().clone() for p in training.model.parameters()]
        scale = 1.0 if scaler is None else LOSS_SCALE  # without one, small float16 gradients vanish
        reference = Reference(training, measured, dtype, amp, scale) if group.rank == 0 else None
        training.backward(batches, weights, scaler=scaler, dtype=amp)
        if scaler is not None:
            scaler.unscale_(optimizer)
        sums = group.gather(checksum(grads(training.model)))
        proofs = []
        if reference is not None:
            difference = Difference(grads(training.model), grads(reference.model))
            proofs.append(_gradient(training, difference, gate, "gradient" + suffix, format_name))
        if scaler is None:
            training.step(optimizer, None)
        else:
            scaler.step(optimizer)
        if reference is not None and amp is None:
            theirs = training.optimizer(reference.model)
            training.step(theirs, None, reference.model)
            proofs += _weights(training.model, reference.model, before, gate, suffix, exact=hook == "none")
        after = group.gather(checksum(state(training.model)))
    for name, values in ("gradients", sums), ("weights", after):
        off = differing(values)
        named = ", ".join(map(group.pulse.who, off))
        proofs.append(
            Proof(
                name=f"equal_{name}{suffix}",
                verdict=Verdict.FAIL if off else Verdict.PASS,
                text=f"{name} differ on {named}" if off else f"the same bits on {group.world_size} ranks",
                cause=f"{named} has other {name}: not averaged, or changed behind DDP's back"
                if off
                else None,
                gate=0,
            )
        )
    told: list[Proof] = group.from_first(proofs)
    return told


def _gradient(training: Training, d: Difference, gate: float, name: str, number_format: str) -> Proof:
    values = {"relative_l2": d.error, "ratio": d.ratio, "residual": d.residual}
    text = f"relative L2 {d.error:.2g} to one process on {training.batch} samples, {number_format}"
    if d.error <= gate:
        return Proof(name=name, verdict=Verdict.PASS, text=text, gate=gate, values=values)
    cause = None
    if d.residual <= max(10 * gate, 1e-3):
        cause = causes.gradient(
            d.ratio,
            micro_batch=max(map(max, training.sizes)),
            accumulation=max(map(len, training.sizes)),
            ranks=training.group.world_size,
        )
    cause = cause or (
        f"{d.ratio:.4g} × too large"
        if d.residual <= max(10 * gate, 1e-3)
        else "another direction: not the same samples, or a loss that is no mean over them"
    )
    return Proof(name=name, verdict=Verdict.FAIL, text=text, cause=cause, gate=gate, values=values)


def _weights(
    model: nn.Module, reference: nn.Module, before: list[Tensor], gate: float, suffix: str, *, exact: bool
) -> list[Proof]:
    weights = Difference(model.parameters(), reference.parameters())
    update = Difference(
        (p - b for p, b in zip(model.parameters(), before, strict=True)),
        (p - b for p, b in zip(reference.parameters(), before, strict=True)),
    )
    good = weights.error <= gate
    proofs = [
        Proof(
            name="weights" + suffix,
            verdict=Verdict.PASS if good else Verdict.FAIL,
            text=f"relative L2 {weights.error:.2g} after the step",
            cause=None if good else "the optimizer saw another gradient",
            gate=gate,
            values={"relative_l2": weights.error},
        )
    ]
    text = f"relative L2 {update.error:.2g}"
    good = update.error <= UPDATE_GATE
    verdict = (Verdict.PASS if good else Verdict.FAIL) if exact else Verdict.UNCHECKED
    proofs.append(
        Proof(
            name="update" + suffix,
            verdict=verdict,
            text=text if exact else f"{text}; gradients are compressed, which Adam magnifies",
            cause="the optimizer's step differs" if verdict is Verdict.FAIL else None,
            gate=UPDATE_GATE,
            values={"relative_l2": update.error},
        )
    )
    return proofs


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
    text = f"as planned at the first {steps} of {plan.total_steps} steps"
    if own is None and not causes.close(started, plan.lr, plan.lr):
        return Proof(
            name="learning_rate",
            verdict=Verdict.CAUTION,
            text=f"{text} under the plan's scheduler; but the optimizer is made with {started:g}, not {plan.lr:g}",
            cause="another learning rate",
            gate=gate,
            values=values,
        )
    return Proof(name="learning_rate", verdict=Verdict.PASS, text=text, gate=gate, values=values)
