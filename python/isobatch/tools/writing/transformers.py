"""transformers' TrainingArguments. To support another tool, copy this file."""

from __future__ import annotations

import re
from typing import Any

from isobatch.schedules.peers.transformers import get_scheduler
from isobatch.tools.writing.curve import Curve, curve, differs
from isobatch.tools.writing.planned import Job, Planned, Sheet, intervals

NAME = "transformers"
TITLE = "transformers TrainingArguments"
VERSIONS = "5"
FILE = "training_args.yaml"
FORMS = ("yaml", "json", "sh")

_OPTIMIZERS = {
    "adam": "adamw_torch",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "rmsprop": "rmsprop",
}
_LENGTH = re.compile(r"([\d.e+]+)(st|ep|sp|tok)")
_SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "1-sqrt"}


def write(plan: Planned, job: Job) -> Sheet:
    """The arguments that the plan decides."""
    sheet = Sheet()
    settings = sheet.settings
    line = curve(plan)
    settings |= {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "learning_rate": plan.lr,
    }
    _schedule(plan, line, sheet)
    settings |= {"warmup_steps": line.warmup, "max_steps": line.total}
    settings |= intervals(plan, "eval_steps", "save_steps", "logging_steps")
    _saved_where_evaluated(plan, sheet)
    _optimizer(plan, sheet)
    # The Trainer clips at 1.0 unless it is asked not to.
    settings["max_grad_norm"] = plan.recipe.clip_norm or 0.0
    if plan.recipe.precision in ("bf16", "fp16", "tf32"):
        settings[plan.recipe.precision] = True
    if plan.recipe.drop_last:
        settings["dataloader_drop_last"] = True
    if not plan.recipe.even_batches:
        settings["accelerator_config"] = {"even_batches": False}
    if plan.recipe.ramp:
        sheet.comments.append("the Trainer has no batch ramp: it trains with the full batch from the start")
    if plan.ema_decay is not None:
        sheet.comments.append(
            f"the Trainer keeps no running average of the weights; the plan's decay is {plan.ema_decay!r}"
        )
    if job.resume is not None:
        settings["resume_from_checkpoint"] = job.resume
        if plan.lr_scale != 1:
            sheet.comments.append(
                "the learning rate changes, and the Trainer restores the old one from scheduler.pt and optimizer.pt: pass "
                "Trainer(optimizers=isobatch.integrations.transformers.optimizers(optimizer, plan))"
            )
    return sheet


def _saved_where_evaluated(plan: Planned, sheet: Sheet) -> None:
    """Rounded each by itself, two intervals lose their ratio; with load_best_model_at_end the Trainer refuses a save_steps that is no
    multiple of eval_steps (transformers, training_args.py)."""
    evaluated, saved = plan.eval_steps, plan.save_steps
    tuned = [_LENGTH.fullmatch(text or "") for text in (plan.recipe.eval_every, plan.recipe.save_every)]
    if not evaluated or not saved or tuned[0] is None or tuned[1] is None or tuned[0][2] != tuned[1][2]:
        return
    times = float(tuned[1][1]) / float(tuned[0][1])
    if times == int(times) and times >= 1 and saved != int(times) * evaluated:
        sheet.settings["save_steps"] = int(times) * evaluated
        sheet.comments.append(
            f"save_steps is {int(times)} × eval_steps, as it was tuned, not {saved}: load_best_model_at_end demands a multiple"
        )


def _optimizer(plan: Planned, sheet: Sheet) -> None:
    name = plan.recipe.optimizer
    if name == "adamw":
        pass  # the Trainer's own default; or the variant of it that the file names, which the plan does not decide
    elif name in _OPTIMIZERS:
        sheet.settings["optim"] = _OPTIMIZERS[name]
    else:
        sheet.comments.append(
            f"optim is not set: the Trainer has no {name} of its own; pass one as Trainer(optimizers=...)"
        )
    if name == "adam" and plan.weight_decay:
        sheet.comments.append(
            "the Trainer has no Adam: adamw_torch decouples the weight decay, Adam does not"
        )
    sheet.settings["weight_decay"] = plan.weight_decay
    if name in ("adamw", "adam"):
        sheet.settings |= {"adam_beta1": plan.beta1, "adam_beta2": plan.beta2, "adam_epsilon": plan.eps}
    if name in ("sgd", "rmsprop") and plan.momentum:
        sheet.settings["optim_args"] = f"momentum={plan.momentum!r}"


def _schedule(plan: Planned, line: Curve, sheet: Sheet) -> None:
    kind, kwargs = _scheduler(line)
    if kind is not None:
        theirs = get_scheduler(
            kind,
            lr=line.peak,
            num_warmup_steps=line.warmup,
            num_training_steps=line.total,
            scheduler_specific_kwargs=kwargs,
        )
        sheet.settings["lr_scheduler_type"] = kind
        if kwargs:
            sheet.settings["lr_scheduler_kwargs"] = kwargs
        miss = differs(plan, theirs.at)
        if miss is None:
            return
        sheet.comments.append(f"lr_scheduler_type {kind} {miss}")
    else:
        sheet.comments.append(
            f"lr_scheduler_type is not set: the Trainer has no scheduler such as {plan.recipe.schedule}"
        )
    sheet.comments.append(
        "for the plan's own curve: Trainer(optimizers=isobatch.integrations.transformers.optimizers(optimizer, plan))"
    )


def _scheduler(line: Curve) -> tuple[str | None, dict[str, Any]]:
    """The name and arguments of the scheduler that has this curve."""
    match line.kind:
        case "constant":
            return "constant_with_warmup", {}
        case "linear" | "linear_to_zero" if line.kind == "linear_to_zero" or not line.bottom:
            return "linear", {}
        case "linear":
            return "polynomial", {"power": 1.0, "lr_end": line.bottom}
        case "polynomial":
            return "polynomial", {"power": line.numbers.get("power", 1.0), "lr_end": line.bottom}
        case "cosine":
            return ("cosine_with_min_lr", {"min_lr": line.bottom}) if line.bottom else ("cosine", {})
        case "inverse_sqrt" | "vaswani":
            over = line.lengths.get("timescale")
            return "inverse_sqrt", {} if over is None else {"timescale": over}
        case "wsd" | "trapezoid" if line.words.get("shape", "linear") in _SHAPES:
            decay, shape = (
                line.lengths.get("decay", max(1, line.total // 5)),
                line.words.get("shape", "linear"),
            )
            return _stable_decay(line, decay, _SHAPES[shape])
        case "one_minus_sqrt":
            return _stable_decay(line, line.decay, "1-sqrt")
    return None, {}


def _stable_decay(line: Curve, decay: int, shape: str) -> tuple[str, dict[str, Any]]:
    kwargs: dict[str, Any] = {"num_decay_steps": decay, "decay_type": shape}
    if line.bottom:
        kwargs["min_lr_ratio"] = line.bottom / line.peak
    return "warmup_stable_decay", kwargs
