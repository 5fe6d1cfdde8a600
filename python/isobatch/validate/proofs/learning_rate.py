"""The learning rate of the real optimizer under the real scheduler, step by step."""

from __future__ import annotations

import torch
from torch import nn

from isobatch.diagnosis import faults
from isobatch.diagnosis.causes import Cause
from isobatch.diagnosis.precision import ulp
from isobatch.integrations.torch.lr import PlanLR
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.trial import Trial

LIMIT = {"quick": 2_000, "usual": 10_000, "full": 1_000_000}
"""Steps that are looked at."""


def prove(trial: Trial) -> list[Proof]:
    """The optimizer's learning rate at each step, against the plan's."""
    return [_judge(trial)]


def _judge(trial: Trial) -> Proof:
    plan = trial.plan
    if plan.total_steps is None or plan.lr is None:
        return unchecked("learning_rate", "the recipe has no duration")
    optimizer = trial.workload.optimizer([nn.Parameter(torch.zeros(2, 2, device=trial.group.device))])
    started, unit = float(optimizer.param_groups[0]["lr"]), ulp(optimizer.param_groups[0]["lr"])
    own = trial.workload.scheduler
    scheduler = own(optimizer) if own is not None else PlanLR(optimizer, plan)
    steps = min(LIMIT[trial.options.extent], plan.total_steps)
    observed = []
    for _ in range(steps):
        observed.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    fault = faults.learning_rate(
        dict(enumerate(observed)),
        plan.lr_at,
        peak=plan.lr,
        pace=faults.Pace(plan.accumulation or 1, plan.data_parallel or 1, plan.steps_per_epoch),
        initial=started if own is not None else None,
        ulp=unit,
    )
    worst = max(abs(lr - plan.lr_at(step)) for step, lr in enumerate(observed))
    values = {"steps": steps, "worst_difference": worst}
    gate = faults.ULPS * unit * plan.lr
    if fault is not None:
        step, diagnosis = fault
        text = f"{observed[step]:.6g} at step {step}, {plan.lr_at(step):.6g} planned"
        return Proof(
            name="learning_rate",
            verdict=Verdict.FAIL,
            text=text,
            diagnosis=diagnosis,
            gate=gate,
            values=values,
        )
    if own is None and not faults.close(started, plan.lr, plan.lr, unit):
        return Proof(
            name="learning_rate",
            verdict=Verdict.FAIL,
            text=f"the optimizer is made with {started:g}, and the workload names no scheduler that sets the plan's "
            f"{plan.lr:g}",
            diagnosis=Cause.ANOTHER_LR.likely(f"{started / plan.lr:.4g}× the plan's"),
            gate=gate,
            values=values,
        )
    text = f"as planned at {'all' if steps == plan.total_steps else f'the first {steps} of'} {plan.total_steps} steps"
    if own is None:
        text += ", by PlanLR: the workload names no scheduler of its own"
    return Proof(name="learning_rate", verdict=Verdict.PASS, text=text, gate=gate, values=values)


CLAIM = Claim(phase="learning rate", names=("learning_rate",), prove=prove)
