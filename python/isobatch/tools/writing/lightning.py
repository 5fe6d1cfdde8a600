"""Lightning: a configuration for LightningCLI."""

from __future__ import annotations

from typing import Any

from isobatch.tools.writing.curve import curve
from isobatch.tools.writing.environment import layout
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "lightning"
TITLE = "Lightning"
VERSIONS = "2.0 to 2.6"
FILE = "trainer.yaml"
FORMS = ("yaml", "json")

_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true", "tf32": "32-true"}
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop", "adafactor": "Adafactor"}


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - no launcher
    """The Trainer, the optimizer, and the batch of the data module."""
    sheet = Sheet()
    line = curve(plan)
    nodes, each = layout(plan, sheet)
    trainer: dict[str, Any] = {
        "devices": each,
        "num_nodes": nodes,
        "strategy": "ddp" if plan.world_size > 1 else "auto",
        "accumulate_grad_batches": plan.accumulation,
        "max_epochs": -1,
        "max_steps": line.total,
        "use_distributed_sampler": True,
    }
    if plan.eval_steps is not None:  # counted in micro-batches, over all epochs
        trainer |= {
            "val_check_interval": plan.eval_steps * (plan.accumulation or 1),
            "check_val_every_n_epoch": None,
        }
    if plan.log_steps is not None:
        trainer["log_every_n_steps"] = plan.log_steps
    if plan.save_steps is not None:
        sheet.comments.append(f"checkpoints: ModelCheckpoint(every_n_train_steps={plan.save_steps})")
    if plan.recipe.precision in _PRECISIONS:
        trainer["precision"] = _PRECISIONS[plan.recipe.precision]
    if plan.recipe.precision == "tf32":
        sheet.comments.append('for tf32: torch.set_float32_matmul_precision("high")')
    if plan.recipe.clip_norm is not None:
        trainer |= {"gradient_clip_val": plan.recipe.clip_norm, "gradient_clip_algorithm": "norm"}
    sheet.settings = {"trainer": trainer, **_optimizer(plan, sheet), "data": {"batch_size": plan.micro_batch}}
    sheet.comments += [
        "data.batch_size goes to the data module by its own name for it: the batch of one GPU",
        f"schedule {plan.recipe.schedule}, {line.warmup} steps of warmup: LightningCLI would step a scheduler once an epoch; return "
        "isobatch.integrations.lightning.configure_optimizers(optimizer, plan) instead",
    ]
    if plan.recipe.ramp:
        sheet.comments.append("Lightning has no batch ramp: it trains with the full batch from the start")
    return sheet


def _optimizer(plan: Planned, sheet: Sheet) -> dict[str, Any]:
    name = plan.recipe.optimizer
    if name not in _OPTIMIZERS:
        sheet.comments.append(f"optimizer {name}, learning rate {plan.lr!r}: torch has none of that name")
        return {}
    arguments: dict[str, Any] = {"lr": plan.lr, "weight_decay": plan.weight_decay}
    if name in ("adamw", "adam"):
        arguments |= {"betas": [plan.beta1, plan.beta2], "eps": plan.eps}
    if name in ("sgd", "rmsprop") and plan.momentum is not None:
        arguments["momentum"] = plan.momentum
    return {"optimizer": {"class_path": f"torch.optim.{_OPTIMIZERS[name]}", "init_args": arguments}}
