"""Composer and llm-foundry."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding
from isobatch.words import count


def check(case: Case) -> Iterator[Finding]:
    """The global batch is split over the GPUs, and then into micro-batches of at most the size that is given."""
    batch, micro = case.fields.get("effective_batch"), case.at("device_train_microbatch_size")
    if batch and batch % case.gpus:
        yield Finding(
            f"the run stops: {count(batch)} samples are no multiple of {case.gpus} GPUs",
            "llm-foundry refuses a batch that it would have to truncate",
            "llm-foundry, utils/config_utils.py: calculate_batch_size_info",
            f"global_train_batch_size: {max(1, batch // case.gpus) * case.gpus}",
        )
    elif batch and type(micro) is int and micro > batch // case.gpus:
        yield Finding(
            f"a micro-batch has {batch // case.gpus} samples, not {micro}",
            f"{count(batch)} samples over {case.gpus} GPUs are {batch // case.gpus} each, and more is reduced to that",
            "llm-foundry, utils/config_utils.py: calculate_batch_size_info",
            f"device_train_microbatch_size: {batch // case.gpus}",
        )
    elif batch and type(micro) is int and batch // case.gpus % micro:
        yield Finding(
            f"the last micro-batch of a step has {batch // case.gpus % micro} samples, not {micro}",
            f"{batch // case.gpus} samples of a GPU are split into micro-batches of {micro}; Composer weighs each by its size",
            "composer, trainer/trainer.py: device_train_microbatch_size",
            f"device_train_microbatch_size: {next(size for size in range(micro, 0, -1) if batch // case.gpus % size == 0)}",
        )
    if micro == "auto":
        yield Finding(
            "the micro-batch is found during the run",
            "device_train_microbatch_size: auto begins with the batch of a GPU and goes down when memory runs out; the batch stays",
            "composer, trainer/trainer.py: device_train_microbatch_size",
            "device_train_microbatch_size: isobatch plan --from ... --set micro_batch=N plans with one",
        )
    if case.at("accumulate_train_batch_on_tokens") is False:
        yield Finding(
            "samples with few tokens weigh as much as long ones: a mean of means",
            "accumulate_train_batch_on_tokens is off: micro-batches are weighed by their samples",
            "composer, trainer/trainer.py: accumulate_train_batch_on_tokens",
            "accumulate_train_batch_on_tokens: true",
        )
