"""DeepSpeed's JSON. "auto" stands for what another program will fill in: it is not known here."""

from __future__ import annotations

from isobatch.tools.reading.common import clip, length, optimizer, pair, unsupported
from isobatch.tools.reading.page import Page

NAME = "deepspeed"
TITLE = "DeepSpeed"
VERSIONS = "0.10 to 0.19"
SIGNS = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "zero_optimization",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "fp16",
    "bf16",
    "scheduler.type",
    "optimizer.params",
    "gradient_accumulation_steps",
)
CALLED = {
    "accumulation": "gradient_accumulation_steps",
    "batch_per_gpu": "train_micro_batch_size_per_gpu",
    "duration": "scheduler.params.total_num_steps",
    "effective_batch": "train_batch_size",
    "lr": "optimizer.params.lr",
    "warmup": "scheduler.params.warmup_num_steps",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""
_BATCH = {
    "train_batch_size": "effective_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
}


def read(page: Page) -> None:
    """Two of the three batch numbers are enough where the GPUs are known; three that contradict each other are an error."""
    autos = [key for key in _BATCH if page.raw(key) == "auto"]
    for key, field in _BATCH.items():
        if key not in autos:
            page.whole(key, field)
    if autos:
        page.note(
            f'{", ".join(autos)}: "auto" is not known before the run: name the file that fills it in by a second --from, such as training_args.json'
        )
    if not page.has("train_batch_size") and not page.has("gradient_accumulation_steps"):
        page.give("accumulation", 1, "gradient_accumulation_steps")
    _optimizer(page)
    _schedule(page)
    if page.raw("gradient_clipping") != "auto":
        clip(page, "gradient_clipping", default=0.0)
    for key, ours in (("bf16.enabled", "bf16"), ("bfloat16.enabled", "bf16"), ("fp16.enabled", "fp16")):
        if page.flag(key):
            page.give("precision", ours, key)


def _optimizer(page: Page) -> None:
    name = page.word("optimizer.type")
    if name is None:
        page.note("there is no optimizer in the file: the training script has it")
        return
    # DeepSpeed's Adam decouples the weight decay unless it is asked not to.
    decoupled = name.lower() == "adam" and page.raw("optimizer.params.adam_w_mode") is not False
    optimizer(page, "optimizer.type", "adamw" if decoupled else name)
    inner = page.table("optimizer.params")
    for key, field in (
        ("lr", "lr"),
        ("eps", "eps"),
        ("weight_decay", "weight_decay"),
        ("momentum", "momentum"),
    ):
        if inner.raw(key) != "auto":
            inner.number(key, field)
    if inner.raw("betas") != "auto":
        pair(inner, "betas")


def _schedule(page: Page) -> None:
    name = page.word("scheduler.type")
    inner = page.table("scheduler.params")
    if name is None:
        page.give("schedule", "constant", "scheduler")
        page.note(
            "there is no scheduler in the file: planned with a constant learning rate (--set schedule=... for another)"
        )
        return
    kinds = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
    if name not in kinds:
        unsupported(page, "scheduler.type", f"the scheduler {name!r}")
        return
    page.give("schedule", kinds[name], "scheduler.type")
    if inner.raw("warmup_num_steps") != "auto":
        warmup = inner.whole("warmup_num_steps", default=1000)
        if warmup:
            page.give("warmup", length(warmup, "st"), "warmup_num_steps")
    if name != "WarmupCosineLR" and inner.raw("warmup_max_lr") != "auto":
        inner.number("warmup_max_lr", "lr")
    if name != "WarmupLR" and inner.raw("total_num_steps") != "auto":
        total = inner.whole("total_num_steps")
        if total:
            page.give("duration", length(total, "st"), "total_num_steps")
    if name == "WarmupCosineLR" and (lr := page.found.fields.get("lr")):
        page.give("min_lr", lr * (inner.number("cos_min_ratio", default=0.0001) or 0.0), "cos_min_ratio")
    if inner.word("warmup_type", "log") != "linear":
        page.note('warmup_type is "log", DeepSpeed\'s default: the warmup is planned as a straight line')
