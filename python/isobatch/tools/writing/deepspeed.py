"""DeepSpeed: its JSON."""

from __future__ import annotations

import math
from typing import Any

from isobatch.tools.writing.curve import Curve, curve, differs
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "deepspeed"
TITLE = "DeepSpeed"
VERSIONS = "0.14 to 0.19"
FILE = "ds_config.json"
FORMS = ("json",)

_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lamb": "Lamb", "lion": "Lion", "sgd": "SGD", "muon": "Muon"}


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - no launcher
    """The three batch numbers, which must multiply out with the data-parallel replicas, the optimizer and the scheduler."""
    sheet = Sheet()
    sheet.settings = {
        "train_batch_size": plan.effective_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
    }
    _optimizer(plan, sheet)
    _scheduler(plan, curve(plan), sheet)
    sheet.settings["gradient_clipping"] = plan.recipe.clip_norm or 0.0
    if plan.recipe.precision in ("bf16", "fp16"):
        sheet.settings[plan.recipe.precision] = {"enabled": True}
    sheet.comments.append(f"the number of steps is the training loop's: {plan.total_steps}")
    if plan.recipe.ramp:
        sheet.comments.append("DeepSpeed's configuration has no batch ramp")
    return sheet


def _optimizer(plan: Planned, sheet: Sheet) -> None:
    name = plan.recipe.optimizer
    if name not in _OPTIMIZERS:
        sheet.comments.append(
            f"DeepSpeed has no {name}: give one to deepspeed.initialize, with learning rate {plan.lr!r}"
        )
        return
    arguments: dict[str, Any] = {"lr": plan.lr, "weight_decay": plan.weight_decay}
    if name in ("adamw", "adam", "lamb", "lion"):
        arguments["betas"] = [plan.beta1, plan.beta2]
    if name in ("adamw", "adam", "lamb"):
        arguments["eps"] = plan.eps
    if name == "adam":
        arguments["adam_w_mode"] = False  # DeepSpeed's Adam is AdamW otherwise
    if name in ("sgd", "muon") and plan.momentum is not None:
        arguments["momentum"] = plan.momentum
    sheet.settings["optimizer"] = {"type": _OPTIMIZERS[name], "params": arguments}


def _scheduler(plan: Planned, line: Curve, sheet: Sheet) -> None:
    warmup = {"warmup_num_steps": line.warmup, "warmup_type": "linear"}
    ends = {"warmup_min_lr": line.first, "warmup_max_lr": line.peak}
    match line.kind:
        case "constant":
            kind, arguments = "WarmupLR", ends | warmup
        case "linear" | "linear_to_zero" if line.kind == "linear_to_zero" or not line.bottom:
            kind, arguments = "WarmupDecayLR", {"total_num_steps": line.total} | ends | warmup
        case "cosine":
            shares = {"warmup_min_ratio": line.first / line.peak, "cos_min_ratio": line.bottom / line.peak}
            kind, arguments = "WarmupCosineLR", {"total_num_steps": line.total} | shares | warmup
        case _:
            sheet.comments.append(
                f"DeepSpeed has no scheduler such as {plan.recipe.schedule}: give isobatch's PlanLR to initialize"
            )
            return
    sheet.settings["scheduler"] = {"type": kind, "params": arguments}
    miss = differs(plan, lambda step: _rate(line, step))
    if miss is not None:
        sheet.comments.append(
            f"{kind} {miss}: give isobatch's PlanLR to deepspeed.initialize for the plan's own"
        )


def _rate(line: Curve, step: int) -> float:
    """DeepSpeed's learning rate at a step, as its lr_schedules.py computes it: it warms up over two steps at least; all but the
    decay of its cosine is one step late.
    """
    at, warmup = step - 1, max(2, line.warmup)
    if at < 0:
        return 0.0
    if at < warmup:
        return line.first + (line.peak - line.first) * at / warmup
    if line.kind == "constant":
        return line.peak
    if line.kind == "cosine":
        u = (at - warmup + 1) / max(1, line.total - warmup)
        return line.bottom + (line.peak - line.bottom) * (1 + math.cos(math.pi * u)) / 2
    return line.first + (line.peak - line.first) * max(0.0, (line.total - at) / max(1.0, line.total - warmup))
