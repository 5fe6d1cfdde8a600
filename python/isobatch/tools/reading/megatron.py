"""Megatron's arguments, in a shell script or on a line."""

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

NAME = "megatron"
TITLE = "Megatron"
VERSIONS = "core 0.6 to 0.19"
SIGNS = (
    "global_batch_size",
    "micro_batch_size",
    "train_iters",
    "train_samples",
    "lr_decay_style",
    "lr_warmup_fraction",
    "lr_warmup_iters",
    "lr_warmup_samples",
    "lr_decay_iters",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "num_layers",
    "hidden_size",
    "clip_grad",
    "rampup_batch_size",
    "step_batch_size_schedule",
    "seq_length",
)
CALLED = {
    "accumulation": "--global-batch-size",
    "batch_per_gpu": "--micro-batch-size",
    "duration": "--train-iters",
    "effective_batch": "--global-batch-size",
    "lr": "--lr",
    "warmup": "--lr-warmup-iters",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""

_INTERLEAVED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")


def read(page: Page) -> None:
    """Values that the arguments leave out have Megatron's defaults."""
    _batch(page)
    page.number("lr", "lr")
    page.number("min_lr", "min_lr")
    # Megatron's "adam" decouples the weight decay.
    name = page.word("optimizer", "adam")
    optimizer(page, "optimizer", "adamw" if name == "adam" else name)
    betas(page, "adam_beta1", "adam_beta2", (0.9, 0.999))
    page.number("adam_eps", "eps")
    if name == "sgd":
        page.number("sgd_momentum", "momentum", default=0.9)
    page.number("weight_decay", "weight_decay", default=0.01)
    page.give("decay", "lr_multiplied", "optimizer")
    clip(page, "clip_grad", default=1.0)
    precision(page, {"bf16": "bf16", "fp16": "fp16"})
    page.whole("seq_length", "seq_len")
    page.give("convention", "megatron", "")
    _length(page)
    _intervals(page)
    _schedule(page)


def _batch(page: Page) -> None:
    page.whole("micro_batch_size", "micro_batch")
    page.whole("global_batch_size", "effective_batch")
    steps = page.raw("step_batch_size_schedule")
    if (
        not page.has("global_batch_size")
        and isinstance(steps, str)
        and (last := steps.rpartition(":")[2]).isdecimal()
    ):
        page.give("effective_batch", int(last), "step_batch_size_schedule")
    elif not page.has("global_batch_size"):
        page.give("accumulation", 1, "global_batch_size")
        page.note("--global-batch-size is not there: micro-batch × replicas, Megatron's default")
    if page.flag("decrease_batch_size_if_needed"):
        page.note(
            "--decrease-batch-size-if-needed: where micro-batch × replicas does not divide the batch, Megatron lowers it; plan with "
            "--split smaller --min-micro-batch N --max-micro-batch N"
        )
    launched(page)
    parallel = 1
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        parallel *= page.whole(key, default=1) or 1
    stages = page.whole("pipeline_model_parallel_size", default=1) or 1
    if stages > 1 and any(page.has(key) for key in _INTERLEAVED):
        page.note(
            f"the pipeline's {stages} stages are interleaved: Megatron refuses an accumulation that is not a multiple of {stages}; plan "
            f"with --accumulation-multiple {stages}"
        )
    if parallel > 1:
        page.give("model_parallel", parallel, "tensor_model_parallel_size")
    gpus = page.found.fields.get("gpus")
    if gpus is not None and gpus % parallel:
        # A script that its users edit before they launch it on more nodes.
        del page.found.fields["gpus"], page.found.keys["gpus"]
        page.note(
            f"the launch line has {gpus} GPUs, not a multiple of the {parallel} that one replica needs; taken as not known: --set gpus=N"
        )
    ramp = page.raw("rampup_batch_size")
    if ramp is not None and steps is not None:
        page.fault(
            "ramp",
            InputError(
                "--rampup-batch-size and --step-batch-size-schedule contradict each other", field="ramp"
            ),
        )
    for key, value in (("rampup_batch_size", ramp), ("step_batch_size_schedule", steps)):
        if value is not None:
            page.give("ramp", " ".join(map(str, value)) if isinstance(value, list) else str(value), key)


def _length(page: Page) -> None:
    for key, unit in (("train_iters", "st"), ("train_samples", "sp")):
        count = page.whole(key)
        if count:
            page.give("duration", length(count, unit), key)
            if unit == "st" and "ramp" in page.found.fields:
                page.note(
                    f"{page.name(key)} beside a batch ramp: taken as iterations of the full batch; --train-samples says it exactly"
                )
            return


def _intervals(page: Page) -> None:
    for key, field in (
        ("eval_interval", "eval_every"),
        ("save_interval", "save_every"),
        ("log_interval", "log_every"),
    ):
        steps = page.whole(key)
        if steps:
            page.give(field, length(steps, "st"), key)


def _schedule(page: Page) -> None:
    style = page.word("lr_decay_style", "linear") or "linear"
    for key, unit in (("lr_warmup_iters", "st"), ("lr_warmup_samples", "sp")):
        count = page.whole(key)
        if count:
            page.give("warmup", length(count, unit), key)
    fraction = page.number("lr_warmup_fraction")
    if fraction:
        page.give("warmup", share(fraction), "lr_warmup_fraction")
    kinds = {"constant": "constant", "linear": "linear", "cosine": "cosine", "inverse-square-root": "vaswani"}
    if style == "WSD":
        decay, shape = page.whole("lr_wsd_decay_iters"), page.word("lr_wsd_decay_style", "exponential")
        names = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "one_minus_sqrt"}
        if decay is None or shape not in names:
            unsupported(page, "lr_decay_style", f"WSD with lr_wsd_decay_style {shape}")
        else:
            page.give("schedule", f"wsd(decay={decay}st, shape={names[shape]})", "lr_decay_style")
    elif style in kinds:
        page.give("schedule", kinds[style], "lr_decay_style")
        _own_end(page, style)
    else:
        unsupported(page, "lr_decay_style", f"the style {style!r}")


def _own_end(page: Page, style: str) -> None:
    """A decay that does not end with the run."""
    for end, run, unit, warm in (
        ("lr_decay_iters", "train_iters", "st", "lr_warmup_iters"),
        ("lr_decay_samples", "train_samples", "sp", "lr_warmup_samples"),
    ):
        last = page.whole(end)
        if last is None or last == page.whole(run) or style == "constant":
            continue
        if style == "inverse-square-root":
            continue  # it has no end
        page.give("schedule", f"{style}(until={length(last, unit)})", end)
        fraction = page.number("lr_warmup_fraction")
        if fraction and not page.has(warm):
            # Megatron takes the share of the decay, not of the run.
            page.give("warmup", length(int(fraction * last), unit), "lr_warmup_fraction")
