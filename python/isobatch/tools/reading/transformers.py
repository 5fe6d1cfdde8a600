"""transformers' TrainingArguments: JSON, YAML, or flags on a command line. To support another tool, copy this file."""

from __future__ import annotations

from isobatch.errors import InputError
from isobatch.tools.reading.common import (
    betas,
    clip,
    launched,
    length,
    optimizer,
    precision,
    share,
    unsupported,
)
from isobatch.tools.reading.page import Page

NAME = "transformers"
TITLE = "transformers TrainingArguments"
VERSIONS = "4.30 to 5"
SIGNS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "lr_scheduler_type",
    "learning_rate",
    "output_dir",
    "warmup_ratio",
    "adam_beta1",
    "max_grad_norm",
    "optim",
)
CALLED = {
    "accumulation": "gradient_accumulation_steps",
    "batch_per_gpu": "per_device_train_batch_size",
    "duration": "max_steps",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""
"""Settings by which a file is known."""

DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 3}


def read(page: Page) -> None:
    """What the Trainer would train with.

    What the file leaves out has the tool's own default, said in a note where the batch or the length depends on it; the
    learning rate is asked for.
    """
    batch(page, "per_device_train_batch_size")
    _loader(page)
    launched(page)
    if not page.has("learning_rate"):
        page.note("learning_rate is not in the file; the Trainer's own default is 5e-5")
    page.number("learning_rate", "lr")
    lengths(page, "num_train_epochs", DEFAULTS["num_train_epochs"])
    page.give("convention", "transformers", "")
    intervals(page)
    schedule(page, "lr_scheduler_type", "linear")
    adam(page, "optim", "adamw_torch")
    page.whole(page.first("max_seq_length", "max_length", "model_max_length"), "seq_len")
    precision(page, {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"})
    if page.flag("dataloader_drop_last"):
        page.give("drop_last", True, "dataloader_drop_last")


def batch(page: Page, per_gpu: str) -> None:
    """Samples per GPU, and micro-batches a step."""
    for key, field in ((per_gpu, "batch_per_gpu"), ("gradient_accumulation_steps", "accumulation")):
        default = DEFAULTS.get(key, 1)
        if not page.has(key):
            page.note(f"{page.name(key)} is not in the file: {default}, the tool's default")
        page.whole(key, field, default=default)
    if page.flag("auto_find_batch_size"):
        page.note(
            "auto_find_batch_size may lower the batch during the run; the plan is for the batch in the file"
        )


def _loader(page: Page) -> None:
    """How Accelerate deals out the batches: `split_batches` counts one over all processes, `even_batches` fills up the last."""
    config, fields = page.table("accelerator_config"), page.found.fields
    if config.has("even_batches") and not config.flag("even_batches"):
        page.give("even_batches", False, "accelerator_config.even_batches")
    if config.flag("split_batches") and type(fields.get("batch_per_gpu")) is int:
        of_all, accumulation = fields.pop("batch_per_gpu"), fields.get("accumulation") or 1
        page.found.keys.pop("batch_per_gpu", None)
        page.give("effective_batch", of_all * accumulation, "per_device_train_batch_size")
        page.note(
            f"accelerator_config.split_batches: the {of_all} of per_device_train_batch_size are of all processes together"
        )


def intervals(page: Page) -> None:
    """How often it evaluates, saves and logs, in steps; a number below 1 is a share of the run, which any batch leaves alone."""
    for key, field in (
        ("eval_steps", "eval_every"),
        ("save_steps", "save_every"),
        ("logging_steps", "log_every"),
    ):
        steps = page.number(key)
        if steps is not None and steps >= 1 and steps == int(steps):
            page.give(field, length(int(steps), "st"), key)


def lengths(page: Page, epochs: str, default_epochs: int | None) -> None:
    """The run and its warmup. max_steps wins over epochs, warmup_steps over warmup_ratio; a warmup_steps below 1 is a share."""
    steps, count = page.whole("max_steps"), page.number(epochs, default=default_epochs)
    if steps is not None and steps > 0:
        page.give("duration", length(steps, "st"), "max_steps")
    elif count is not None:
        page.give("duration", length(count, "ep"), epochs)
        if not page.has(epochs):
            page.note(f"{page.name(epochs)} is not in the file: {default_epochs}, the tool's default")
    warmup, ratio = page.number("warmup_steps"), page.number("warmup_ratio")
    if warmup and warmup >= 1:
        page.give("warmup", length(int(warmup), "st"), "warmup_steps")
    elif warmup:
        page.give("warmup", share(warmup), "warmup_steps")
    elif ratio:
        page.give("warmup", share(ratio), "warmup_ratio")


def adam(page: Page, key: str, default: str) -> None:
    """The optimizer and its numbers."""
    optimizer(page, key, page.word(key, default))
    betas(page, "adam_beta1", "adam_beta2")
    page.number("adam_epsilon", "eps")
    page.number("weight_decay", "weight_decay")
    if page.found.fields.get("optimizer") == "adamw":
        page.give("decay", "lr_multiplied", key)
    clip(page, "max_grad_norm", default=1.0)


def schedule(page: Page, key: str, default: str) -> None:
    """A scheduler of transformers as a recipe's schedule."""
    name = (page.word(key, default) or default).lower()
    kwargs = page.table("lr_scheduler_kwargs")
    if name in ("constant", "constant_with_warmup"):
        page.give("schedule", "constant", key)
        if name == "constant" and page.found.fields.pop("warmup", None):
            page.note("lr_scheduler_type constant ignores the warmup; constant_with_warmup does not")
    elif name == "linear":
        page.give("schedule", "linear", key)
    elif name in ("cosine", "cosine_with_min_lr"):
        if kwargs.number("num_cycles", default=0.5) != 0.5:
            unsupported(page, "lr_scheduler_kwargs", "a cosine with num_cycles other than 0.5")
        page.give("schedule", "cosine", key)
        _bottom(page, kwargs)
    elif name == "polynomial":
        page.give("schedule", f"polynomial(power={kwargs.number('power', default=1.0)!r})", key)
        kwargs.number("lr_end", "min_lr", default=1e-7)
    elif name == "inverse_sqrt":
        over = kwargs.whole("timescale")
        page.give("schedule", f"inverse_sqrt(timescale={over}st)" if over else "inverse_sqrt", key)
    elif name in ("warmup_stable_decay", "wsd"):
        _wsd(page, kwargs, key)
    elif name == "cosine_with_restarts" and kwargs.number("num_cycles", default=1) == 1:
        page.give("schedule", "cosine", key)
    else:
        unsupported(page, key, f"the scheduler {name!r}")


def _bottom(page: Page, kwargs: Page) -> None:
    lr, rate = page.found.fields.get("lr"), kwargs.number("min_lr_rate")
    if rate is not None and lr is not None:
        page.give("min_lr", lr * rate, "lr_scheduler_kwargs")
    else:
        kwargs.number("min_lr", "min_lr")


def _wsd(page: Page, kwargs: Page, key: str) -> None:
    shapes = {"linear": "linear", "cosine": "cosine", "1-sqrt": "one_minus_sqrt"}
    shape = shapes.get(kwargs.word("decay_type", "cosine") or "")
    decay, ratio = kwargs.whole("num_decay_steps"), kwargs.number("min_lr_ratio", default=0.0)
    if shape is None or not decay or kwargs.word("warmup_type", "linear") != "linear":
        unsupported(page, key, "this warmup_stable_decay")
        return
    page.give("schedule", f"wsd(decay={decay}st, shape={shape})", key)
    if ratio and (lr := page.found.fields.get("lr")):
        page.give("min_lr", lr * ratio, "lr_scheduler_kwargs")
        page.fault(
            "schedule", InputError("its warmup starts at the minimum: give schedule a value", field=key)
        )
