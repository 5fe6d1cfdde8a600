"""LightningCLI's YAML: the Trainer's arguments, and what the module and the data take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isobatch.tools.reading.common import clip, length, optimizer, torch_optimizer, unsupported
from isobatch.tools.reading.page import Page

NAME = "lightning"
TITLE = "Lightning"
VERSIONS = "2.0 to 2.6"
SIGNS = (
    "trainer.accumulate_grad_batches",
    "trainer.devices",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.precision",
    "model.class_path",
    "data.class_path",
    "seed_everything",
)
CALLED = {
    "accumulation": "trainer.accumulate_grad_batches",
    "duration": "trainer.max_steps",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""
_BATCH = (
    "data.init_args.batch_size",
    "data.batch_size",
    "data.init_args.train_batch_size",
    "model.init_args.batch_size",
)
_RATES = (
    "optimizer.init_args.lr",
    "model.init_args.learning_rate",
    "model.init_args.lr",
    "model.learning_rate",
    "model.lr",
    "optimizer.lr",
)


def read(page: Page) -> None:
    """Batch and learning rate are the user's own arguments: they are looked for under the usual names."""
    page.whole(page.first(*_BATCH), "batch_per_gpu")
    page.whole("trainer.accumulate_grad_batches", "accumulation", default=1)
    _devices(page)
    page.number(page.first(*_RATES), "lr")
    name = page.word("optimizer.class_path")
    optimizer(page, "optimizer.class_path", None if name is None else name.rpartition(".")[2])
    torch_optimizer(page.table("optimizer.init_args"))
    _length(page)
    _schedule(page)
    if page.word("trainer.gradient_clip_algorithm", "norm") == "norm":
        clip(page, "trainer.gradient_clip_val")
    else:
        page.note("trainer.gradient_clip_algorithm clips values, not the norm: it is not planned")
    precision = str(page.raw("trainer.precision") or "")
    for start, ours in (("bf16", "bf16"), ("16", "fp16"), ("32", "fp32")):
        if precision.startswith(start):
            page.give("precision", ours, "trainer.precision")
            break
    page.give("convention", "lightning", "")


def _devices(page: Page) -> None:
    devices, nodes = page.raw("trainer.devices"), page.whole("trainer.num_nodes", default=1) or 1
    if isinstance(devices, list):
        page.give("gpus", len(devices) * nodes, "trainer.devices")
    elif isinstance(devices, str) and "," in devices:
        page.give(
            "gpus", len([part for part in devices.split(",") if part.strip()]) * nodes, "trainer.devices"
        )
    elif devices not in (None, "auto", -1, "-1"):
        count = page.whole("trainer.devices")
        if count:
            page.give("gpus", count * nodes, "trainer.devices")


def _length(page: Page) -> None:
    steps, epochs = page.whole("trainer.max_steps", default=-1), page.number("trainer.max_epochs")
    if steps is not None and steps > 0:
        page.give("duration", length(steps, "st"), "trainer.max_steps")
        if epochs and epochs > 0:
            page.note(
                "trainer.max_epochs and max_steps: Lightning ends at whichever comes first; planned by max_steps"
            )
    elif epochs and epochs > 0:
        page.give("duration", length(epochs, "ep"), "trainer.max_epochs")
    elif epochs is None:
        page.note(
            "neither max_steps nor max_epochs: Lightning trains for 1,000 epochs; give duration a value"
        )


def _schedule(page: Page) -> None:
    name = page.word("lr_scheduler.class_path")
    arguments: Any = page.raw("lr_scheduler.init_args")
    arguments = arguments if isinstance(arguments, Mapping) else {}
    if name is None:
        page.give("schedule", "constant", "lr_scheduler")
        page.note(
            "there is no lr_scheduler in the file: planned with a constant learning rate (--set schedule=... for another)"
        )
        return
    kind = name.rpartition(".")[2]
    if kind == "CosineAnnealingLR":
        page.give("schedule", "cosine", "lr_scheduler.class_path")
        page.table("lr_scheduler.init_args").number("eta_min", "min_lr")
    elif kind == "StepLR" and arguments.get("step_size"):
        gamma = arguments.get("gamma", 0.1)
        page.give(
            "schedule", f"step(every={arguments['step_size']}ep, gamma={gamma})", "lr_scheduler.class_path"
        )
    elif kind == "MultiStepLR" and arguments.get("milestones"):
        points = ", ".join(f"{point}ep" for point in arguments["milestones"])
        gamma = arguments.get("gamma", 0.1)
        page.give("schedule", f"multistep({points}, gamma={gamma})", "lr_scheduler.class_path")
    elif kind == "ConstantLR":
        page.give("schedule", "constant", "lr_scheduler.class_path")
    else:
        unsupported(page, "lr_scheduler.class_path", f"the scheduler {kind!r}")
        return
    page.note("LightningCLI steps the lr_scheduler once an epoch; the plan's learning rate moves every step")
