"""torchtitan: its TOML, and since 0.3 the Python function that returns a configuration, whose names are the same."""

from __future__ import annotations

from isobatch.errors import InputError, must_be
from isobatch.tools.reading.common import betas, clip, inherited, length, optimizer, pair, unsupported
from isobatch.tools.reading.page import Page

NAME = "torchtitan"
TITLE = "torchtitan"
VERSIONS = "0.1 to 0.3"
NO_CLIPPING = 1e30
"""torchtitan always clips: a norm that no gradient has."""
SIGNS = (
    "training.local_batch_size",
    "training.batch_size",
    "training.global_batch_size",
    "training.seq_len",
    "training.steps",
    "training.num_tokens_per_microbatch_per_dp_rank",
    "job.dump_folder",
    "lr_scheduler.warmup_steps",
    "parallelism.data_parallel_shard_degree",
    "parallelism.tensor_parallel_degree",
    "model.flavor",
    "model_spec",
    "lr_scheduler.decay_ratio",
)
CALLED = {
    "accumulation": "training.global_batch_size",
    "batch_per_gpu": "training.local_batch_size",
    "duration": "training.steps",
    "effective_batch": "training.global_batch_size",
    "lr": "optimizer.lr",
    "warmup": "lr_scheduler.warmup_steps",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""


def read(page: Page) -> None:
    """Values that the file leaves out have torchtitan's defaults, unless it starts from another."""
    whole = not inherited(page, "_from_")
    _batch(page, whole)
    _optimizer(page)
    key = page.first("training.seq_len", "training.max_context_length")
    page.whole(key, "seq_len", default=2048 if whole else None)
    if page.raw("training.max_norm") != NO_CLIPPING:
        clip(page, "training.max_norm", default=1.0)
    steps = page.whole("training.steps", default=10_000 if whole else None)
    if steps:
        page.give("duration", length(steps, "st"), "training.steps")
    _schedule(page, steps or 0)
    precision = {"bfloat16": "bf16", "float32": "fp32"}.get(
        page.word("training.mixed_precision_param", "bfloat16") or ""
    )
    if precision is not None:
        page.give("precision", precision, "training.mixed_precision_param")


def _optimizer(page: Page) -> None:
    """Of a list of groups of parameters each has its own: the plan has one."""
    groups = page.raw("optimizer.param_groups")
    inner = page.table("optimizer")
    if isinstance(groups, list):
        if len(groups) != 1 or not isinstance(groups[0], dict):
            page.fault("lr", InputError("are several: give lr a value", field="optimizer.param_groups"))
            return
        inner = Page(
            {"name": groups[0].get("optimizer_name"), **(groups[0].get("optimizer_kwargs") or {})}, page.found
        )
    inner.number("lr", "lr")
    optimizer(inner, "name", inner.word("name", "AdamW"))
    if inner.has("betas"):
        pair(inner, "betas")
    else:
        betas(inner, "beta1", "beta2", (0.9, 0.95))
    inner.number("eps", "eps")
    inner.number("weight_decay", "weight_decay", default=0.1)
    page.give("decay", "lr_multiplied", "optimizer.name")


def _batch(page: Page, whole: bool) -> None:
    tokens = page.whole("training.num_tokens_per_microbatch_per_dp_rank")
    if tokens is not None:
        _tokens(page, tokens)
    else:
        key = page.first("training.local_batch_size", "training.batch_size")
        page.whole(key, "batch_per_gpu", default=8 if whole else None)
    total = page.whole("training.global_batch_size", default=-1)
    if total and total > 0:
        page.give("effective_batch", total, "training.global_batch_size")
    elif whole and "effective_batch" not in page.found.fields:
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


def _tokens(page: Page, micro: int) -> None:
    """After 0.3 batches are counted in tokens: of the longest sequence a whole number."""
    length = page.whole("training.max_context_length", default=2048) or 2048
    for key, tokens, field in (
        ("training.num_tokens_per_microbatch_per_dp_rank", micro, "batch_per_gpu"),
        (
            "training.num_tokens_per_train_step",
            page.whole("training.num_tokens_per_train_step"),
            "effective_batch",
        ),
    ):
        if tokens is not None and tokens > 0:
            if tokens % length:
                page.fault(field, must_be(f"a multiple of max_context_length {length}", tokens, field=key))
            else:
                page.give(field, tokens // length, key)


def _schedule(page: Page, steps: int) -> None:
    warmup = page.whole("lr_scheduler.warmup_steps", default=200) or 0
    own = page.whole("lr_scheduler.total_steps")
    if own is not None and own != steps:
        unsupported(page, "lr_scheduler.total_steps", "a schedule that does not end with the run")
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
