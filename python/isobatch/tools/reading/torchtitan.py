"""torchtitan's TOML, as it was until its configurations became Python."""

from __future__ import annotations

from isobatch.tools.reading.common import betas, clip, length, optimizer, unsupported
from isobatch.tools.reading.page import Page

NAME = "torchtitan"
TITLE = "torchtitan"
VERSIONS = "0.1 to 0.2"
NO_CLIPPING = 1e30
"""torchtitan always clips: a norm that no gradient has."""
SIGNS = (
    "training.local_batch_size",
    "training.batch_size",
    "training.global_batch_size",
    "training.seq_len",
    "training.steps",
    "job.dump_folder",
    "lr_scheduler.warmup_steps",
    "parallelism.data_parallel_shard_degree",
    "parallelism.tensor_parallel_degree",
    "model.flavor",
)


def read(page: Page) -> None:
    """Values that the file leaves out have torchtitan's defaults."""
    _batch(page)
    page.number("optimizer.lr", "lr")
    optimizer(page, "optimizer.name", page.word("optimizer.name", "AdamW"))
    betas(page, "optimizer.beta1", "optimizer.beta2", (0.9, 0.95))
    page.number("optimizer.eps", "eps")
    page.number("optimizer.weight_decay", "weight_decay", default=0.1)
    page.give("decay", "lr_multiplied", "optimizer.name")
    page.whole("training.seq_len", "seq_len", default=2048)
    if page.raw("training.max_norm") != NO_CLIPPING:
        clip(page, "training.max_norm", default=1.0)
    steps = page.whole("training.steps", default=10_000)
    if steps:
        page.give("duration", length(steps, "st"), "training.steps")
    _schedule(page, steps or 0)
    precision = {"bfloat16": "bf16", "float32": "fp32"}.get(
        page.word("training.mixed_precision_param", "bfloat16") or ""
    )
    if precision is not None:
        page.give("precision", precision, "training.mixed_precision_param")


def _batch(page: Page) -> None:
    key = page.first("training.local_batch_size", "training.batch_size")
    page.whole(key, "batch_per_gpu", default=8)
    total = page.whole("training.global_batch_size", default=-1)
    if total and total > 0:
        page.give("effective_batch", total, "training.global_batch_size")
    else:
        page.give("accumulation", 1, "training.global_batch_size")
    degrees = {
        name: page.whole(f"parallelism.{name}_degree", default=1) or 1
        for name in ("data_parallel_replicate", "tensor_parallel", "pipeline_parallel", "context_parallel")
    }
    replicate = degrees.pop("data_parallel_replicate")
    parallel = 1
    for degree in degrees.values():
        parallel *= degree
    if parallel > 1:
        page.give("model_parallel", parallel, "parallelism.tensor_parallel_degree")
    shard = page.whole("parallelism.data_parallel_shard_degree", default=-1) or -1
    if shard > 0:
        page.give("gpus", replicate * shard * parallel, "parallelism.data_parallel_shard_degree")


def _schedule(page: Page, steps: int) -> None:
    warmup = page.whole("lr_scheduler.warmup_steps", default=200) or 0
    page.give("warmup", length(warmup, "st"), "lr_scheduler.warmup_steps")
    kind = page.word("lr_scheduler.decay_type", "linear") or "linear"
    shape = {"linear": "linear", "cosine": "cosine", "sqrt": "one_minus_sqrt"}.get(kind)
    if shape is None:
        unsupported(page, "lr_scheduler.decay_type", f"the decay {kind!r}")
        return
    ratio = page.number("lr_scheduler.decay_ratio")
    if ratio is None:
        page.give("schedule", shape, "lr_scheduler.decay_type")
    elif ratio == 0:
        page.give("schedule", "constant", "lr_scheduler.decay_ratio")
    else:
        decay = min(round(steps * ratio), max(1, steps - warmup))
        page.give("schedule", f"wsd(decay={decay}st, shape={shape})", "lr_scheduler.decay_ratio")
    factor = page.number(page.first("lr_scheduler.min_lr_factor", "lr_scheduler.lr_min"), default=0.0)
    if factor and (lr := page.found.fields.get("lr")):
        page.give("min_lr", lr * factor, "lr_scheduler.min_lr_factor")
