"""torchtitan: its TOML, and since 0.3, whose configurations are Python, a function that changes one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isobatch.tools.reading.torchtitan import NO_CLIPPING
from isobatch.tools.writing.curve import Curve, curve, differs
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "torchtitan"
TITLE = "torchtitan"
VERSIONS = "0.2 to 0.3"
FILE = "train.toml"
FORMS = ("toml", "py")

_SHAPES = {"linear": "linear", "linear_to_zero": "linear", "cosine": "cosine", "one_minus_sqrt": "sqrt"}


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - no launcher
    """Batch, optimizer and schedule; how the model is split stays as it is."""
    sheet = Sheet()
    line = curve(plan)
    training: dict[str, object] = {
        "local_batch_size": plan.micro_batch,
        "global_batch_size": plan.effective_batch,
        "steps": line.total,
        # torchtitan clips at 1.0 unless it is asked not to.
        "max_norm": plan.recipe.clip_norm or NO_CLIPPING,
    }
    if plan.recipe.clip_norm is None:
        sheet.comments.append("max_norm is as good as none: the plan does not clip")
    if plan.recipe.seq_len is not None:
        training["seq_len"] = plan.recipe.seq_len
    precision = {"bf16": "bfloat16", "fp32": "float32"}.get(plan.recipe.precision or "")
    if precision is not None:
        training["mixed_precision_param"] = precision
    elif plan.recipe.precision is not None:
        sheet.comments.append(f"torchtitan has no {plan.recipe.precision}")
    sheet.settings = {
        "training": training,
        "optimizer": _optimizer(plan, sheet),
        "lr_scheduler": _scheduler(plan, line, sheet),
    }
    for table, key, steps in (
        ("validation", "freq", plan.eval_steps),
        ("checkpoint", "interval", plan.save_steps),
        ("metrics", "log_freq", plan.log_steps),
    ):
        if steps is not None:
            sheet.settings[table] = {key: steps}
    if plan.recipe.ramp:
        sheet.comments.append("torchtitan has no batch ramp")
    return sheet


def _optimizer(plan: Planned, sheet: Sheet) -> dict[str, object]:
    name = plan.recipe.optimizer
    if name not in ("adamw", "adam"):
        sheet.comments.append(f"torchtitan has no {name}: optimizer.name is not set")
        return {"lr": plan.lr, "weight_decay": plan.weight_decay}
    return {
        "name": {"adamw": "AdamW", "adam": "Adam"}[name],
        "lr": plan.lr,
        "beta1": plan.beta1,
        "beta2": plan.beta2,
        "eps": plan.eps,
        "weight_decay": plan.weight_decay,
    }


def _scheduler(plan: Planned, line: Curve, sheet: Sheet) -> dict[str, object]:
    shape = line.words.get("shape", "linear") if line.kind in ("wsd", "trapezoid") else line.kind or ""
    decay = (
        line.lengths.get("decay", max(1, line.total // 5))
        if line.kind in ("wsd", "trapezoid")
        else line.decay
    )
    settings: dict[str, object] = {"warmup_steps": line.warmup}
    if line.kind == "constant":
        settings["decay_ratio"], decay = 0.0, 0
        sheet.comments.append(
            "torchtitan divides by the steps of the decay: use decay_ratio 0.0 only where your version takes it"
        )
    elif shape not in _SHAPES:
        sheet.comments.append(f"torchtitan has no schedule such as {plan.recipe.schedule}")
        return settings
    else:
        settings["decay_type"] = _SHAPES[shape]
        if decay != line.decay:
            settings["decay_ratio"] = decay / line.total
    if line.bottom:
        settings["min_lr_factor"] = line.bottom / line.peak
    miss = differs(plan, lambda step: _rate(line, decay, shape, step))
    if miss is not None:
        sheet.comments.append(
            f"the learning rate {miss}; torchtitan warms up one step ahead, by (step + 1) / warmup_steps"
        )
    return settings


def _rate(line: Curve, decay: int, shape: str, step: int) -> float:
    """torchtitan's learning rate at a step, the first of which is 0."""
    if step < line.warmup:
        return line.peak * (step + 1) / line.warmup
    start = line.total - decay
    if step <= start or not decay:
        return line.peak
    u = (step - start) / decay
    factor = {"cosine": 0.5 * (1 + math.cos(math.pi * u)), "one_minus_sqrt": 1 - math.sqrt(u)}.get(
        shape, 1 - u
    )
    return line.bottom + (line.peak - line.bottom) * factor


def render(sheet: Sheet, remarks: Mapping[str, str], top: str, job: Job) -> str:  # noqa: ARG001 - no launcher
    """torchtitan 0.3: a function for the configuration that the plan starts from. A group for all parameters is the optimizer."""
    lines = [
        f"    config.training.{name} = {value!r}{_said(remarks, f'training.{name}')}"
        for name, value in sheet.settings["training"].items()
    ]
    own = dict(sheet.settings["optimizer"])
    name = own.pop("name", None)
    if "beta1" in own:
        own["betas"] = (own.pop("beta1"), own.pop("beta2"))
    group = ""
    if name is not None:
        said = "; ".join(
            f"{at.partition('.')[2]} {text}" for at, text in remarks.items() if at.startswith("optimizer.")
        )
        group = (
            f"    group = ParamGroupConfig(pattern='.*', optimizer_name={name!r}, optimizer_kwargs={own!r})"
            f"{'  # ' + ' '.join(said.split()) if said else ''}\n"
            "    config.optimizer = OptimizersContainer.Config(param_groups=[group])\n"
        )
    training = "\n".join(lines)
    arguments = ", ".join(f"{name}={value!r}" for name, value in sheet.settings["lr_scheduler"].items())
    return f'''{top}from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig


def planned(config):
    """Changes a Trainer.Config: return planned(llama3_8b()) from the function that --config names."""
{training}
{group}    config.lr_scheduler = LRSchedulersContainer.Config({arguments})
    return config
'''


def _said(remarks: Mapping[str, str], at: str) -> str:
    return f"  # {' '.join(remarks[at].split())}" if at in remarks else ""
