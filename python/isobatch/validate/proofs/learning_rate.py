"""The learning rate of the real optimizer under the real scheduler, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isobatch.diagnosis import causes
from isobatch.integrations.torch import PlanLR
from isobatch.validate.report.report import Proof, Verdict
from isobatch.validate.step.training import Training


def ulp(rate: Any) -> float:
    """The unit in the last place of 1, in the format that a group's learning rate has: a tensor's is mostly float32.

    >>> ulp(0.1) == 2**-52, ulp(torch.tensor(0.1)) == 2**-23
    (True, True)
    """
    return torch.finfo(rate.dtype).eps if isinstance(rate, Tensor) else 2.0**-52


def prove(training: Training) -> Proof:
    """The learning rate of the real optimizer under the real scheduler at each step, against the plan's."""
    plan, limit = training.plan, {"quick": 2_000, "usual": 10_000, "full": 1_000_000}[training.options.extent]
    if plan.total_steps is None or plan.lr is None:
        return Proof(name="learning_rate", verdict=Verdict.UNCHECKED, text="the recipe has no duration")
    optimizer = training.workload.optimizer([nn.Parameter(torch.zeros(2, 2))])
    started, unit = float(optimizer.param_groups[0]["lr"]), ulp(optimizer.param_groups[0]["lr"])
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
        ulp=unit,
    )
    worst = max(abs(lr - plan.lr_at(step)) for step, lr in enumerate(observed))
    values = {"steps": steps, "worst_difference": worst}
    gate = causes.ULPS * unit * plan.lr
    if fault is not None:
        step, cause = fault
        text = f"{observed[step]:.6g} at step {step}, {plan.lr_at(step):.6g} planned"
        return Proof(
            name="learning_rate", verdict=Verdict.FAIL, text=text, cause=cause, gate=gate, values=values
        )
    if own is None and not causes.close(started, plan.lr, plan.lr, unit):
        return Proof(
            name="learning_rate",
            verdict=Verdict.FAIL,
            text=f"the optimizer is made with {started:g}, and the workload names no scheduler that sets the plan's "
            f"{plan.lr:g}",
            cause=f"another learning rate, {started / plan.lr:.4g}× the plan's",
            gate=gate,
            values=values,
        )
    text = f"as planned at {'all' if steps == plan.total_steps else f'the first {steps} of'} {plan.total_steps} steps"
    if own is None:
        text += ", by PlanLR: the workload names no scheduler of its own"
    return Proof(name="learning_rate", verdict=Verdict.PASS, text=text, gate=gate, values=values)
