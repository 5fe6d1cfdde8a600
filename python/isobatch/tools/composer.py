"""Composer's and llm-foundry's YAML, with their time strings: 1ep, 4800ba, 2.5e9tok, 0.1dur."""

import re
from collections.abc import Iterator

from isobatch.errors import must_be
from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import STAYS, Case, Issue, Reader, Tool
from isobatch.words import count, share

_TIME = re.compile(r"\s*([\d_]*\.?\d+(?:[eE][-+]?\d+)?)\s*(ep|ba|sp|tok|dur)\s*")
_UNITS = {"ep": "ep", "ba": "st", "sp": "sp", "tok": "tok"}

_HARMLESS = """
    accumulate_train_batch_on_tokens algorithm_passes algorithms.* callbacks precision_config ddp_sync_strategy auto_log_hparams autoresume callbacks.* cluster code_paths command console_* cuda_*
    deterministic_mode device device_eval_* dist_* expandable_segments fsdp_* global_seed gpu_num gpu_type icl_* image integrations
    loggers.* max_split_* metadata* n_gpus only_* optimizer.* optimizers precision_config.* progress_bar python_log_level scheduler.*
    schedulers spin_dataloaders step_schedulers_every_batch tags train_loader* variables.* flatten_metadata compute.* fsdp_config.* eval_first
    scheduling.* run_name env_variables parameters.* max_seq_len device_train_grad_accum is_eval*
"""
"""Of Composer 0.32 and llm-foundry 0.22."""
_MATTERS = {
    "duration": "scale_schedule_ratio",
    "dataset_size": "train_subset_num_batches",
    "model_parallel": "tp_config.tensor_parallel_degree parallelism_config.tp*",
    "effective_batch": "device_train_batch_size",
    STAYS: "algorithms.seq_length_warmup.*",
}


def read(page: SettingsPage) -> None:
    """`${name}` is looked up in the same file."""
    page = page.interpolated()
    page.name_absent(
        batch_per_gpu="device_train_microbatch_size", duration="max_duration", warmup="scheduler.t_warmup"
    )
    page.whole(page.first("global_train_batch_size", "train_batch_size"), "effective_batch")
    if page.raw("device_train_microbatch_size") == "auto":
        page.note(
            "device_train_microbatch_size: auto is found during the run; give max_micro_batch to plan with one"
        )
    else:
        page.whole("device_train_microbatch_size", "micro_batch")
    _optimizer(page)
    key = page.first("max_duration", "variables.max_duration")
    time = _time(page, key)
    if time:
        page.give("duration", time, key)
    page.whole(page.first("max_seq_len", "variables.max_seq_len"), "seq_len")
    _schedule(page)
    page.clip("algorithms.gradient_clipping.clipping_threshold")
    precision = page.word("precision", "") or ""
    if precision in ("amp_bf16", "amp_fp16", "fp32"):
        page.give("precision", precision.removeprefix("amp_"), "precision")
    if page.flag("train_loader.drop_last"):
        page.give("drop_last", True, "train_loader.drop_last")


def _optimizer(page: SettingsPage) -> None:
    name = page.word("optimizer.name")
    page.optimizer("optimizer.name", name)
    page.number("optimizer.lr", "lr")
    page.table("optimizer").torch_optimizer()
    if name == "decoupled_adamw":
        # Its own defaults, which are not torch's.
        for field, value in (("betas", (0.9, 0.95)), ("weight_decay", 1e-5)):
            if not page.has(f"optimizer.{field}"):
                page.give(field, value, "optimizer.name")
    if name is not None and "adamw" in name:
        decay = "independent" if name.startswith("decoupled") else "lr_multiplied"
        page.give("decay", decay, "optimizer.name")


def _schedule(page: SettingsPage) -> None:
    name = page.word("scheduler.name")
    if name is None:
        page.give("schedule", "constant", "scheduler")
        return
    kinds = {
        "cosine_with_warmup": "cosine",
        "linear_decay_with_warmup": "linear",
        "constant_with_warmup": "constant",
        "cosine_annealing": "cosine",
        "constant": "constant",
    }
    if name not in kinds:
        page.unsupported("scheduler.name", f"the scheduler {name!r}")
        return
    page.give("schedule", kinds[name], "scheduler.name")
    ends = ("100%", page.reading.fields.get("duration"))
    if page.has("scheduler.t_max") and _time(page, "scheduler.t_max") not in ends:
        page.unsupported("scheduler.t_max", "a decay that does not end with the run")
    warmup = _time(page, "scheduler.t_warmup") if page.has("scheduler.t_warmup") else None
    if warmup and not warmup.startswith("0"):
        page.give("warmup", warmup, "scheduler.t_warmup")
    if kinds[name] != "constant":
        page.times_lr("min_lr", page.number("scheduler.alpha_f"), "scheduler.alpha_f")


def _time(page: SettingsPage, key: str) -> str | None:
    """A time string as a length of ours."""
    value = page.raw(key)
    if value is None:
        return None
    if type(value) is int:
        return f"{value}ep"  # Composer's own reading of a bare number
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        page.fault(key.rpartition(".")[2], must_be("a time such as 1ep, 4800ba or 0.1dur", value, field=key))
        return None
    text = match[1].replace("_", "")
    return share(float(text)) if match[2] == "dur" else f"{text}{_UNITS[match[2]]}"


def check(case: Case) -> Iterator[Issue]:
    """Finds batches that do not split: over the GPUs, and then into micro-batches of at most the given size."""
    batch, micro = case.fields.get("effective_batch"), case.at("device_train_microbatch_size")
    if batch and batch % case.gpus:
        yield Issue.stop(
            f"{count(batch)} samples are no multiple of {case.gpus} GPUs",
            "llm-foundry refuses a batch that it would have to truncate",
            "llm-foundry, utils/config_utils.py: calculate_batch_size_info",
            f"global_train_batch_size: {max(1, batch // case.gpus) * case.gpus}",
        )
    elif batch and type(micro) is int and micro > batch // case.gpus:
        yield Issue.note(
            f"a micro-batch has {batch // case.gpus} samples, not {micro}",
            f"{count(batch)} samples over {case.gpus} GPUs are {batch // case.gpus} each, and more is reduced to that",
            "llm-foundry, utils/config_utils.py: calculate_batch_size_info",
            f"device_train_microbatch_size: {batch // case.gpus}",
        )
    elif batch and type(micro) is int and batch // case.gpus % micro:
        yield Issue.note(
            f"the last micro-batch of a step has {batch // case.gpus % micro} samples, not {micro}",
            f"{batch // case.gpus} samples of a GPU are split into micro-batches of {micro}; Composer weighs each by its size",
            "composer, trainer/trainer.py: device_train_microbatch_size",
            f"device_train_microbatch_size: {next(size for size in range(micro, 0, -1) if batch // case.gpus % size == 0)}",
        )
    if micro == "auto":
        yield Issue.note(
            "the micro-batch is found during the run",
            "device_train_microbatch_size: auto begins with the batch of a GPU and goes down when memory runs out; the batch stays",
            "composer, trainer/trainer.py: device_train_microbatch_size",
            "device_train_microbatch_size: isobatch plan --from ... --set micro_batch=N plans with one",
        )
    if case.at("accumulate_train_batch_on_tokens") is False:
        yield Issue.note(
            "samples with few tokens weigh as much as long ones: a mean of means",
            "accumulate_train_batch_on_tokens is off: micro-batches are weighed by their samples",
            "composer, trainer/trainer.py: accumulate_train_batch_on_tokens",
            "accumulate_train_batch_on_tokens: true",
        )


COMPOSER = Tool("composer", "Composer", Reader("0.14 to 0.32", read, check, _HARMLESS, _MATTERS))
