"""transformers' Trainer, and what is built on it."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding, number


def check(case: Case) -> Iterator[Finding]:
    """transformers' Trainer, and what is built on it."""
    # A checkpoint's max_steps is what the Trainer counted, also where its arguments say epochs.
    steps = 0.0 if case.found.tool == "checkpoint" else number(case.at("max_steps"))
    ratio = case.at("warmup_ratio")
    for epochs in ("num_train_epochs", "num_epochs"):
        if steps > 0 and case.at(epochs) is not None:
            yield Finding(
                f"{epochs} {case.at(epochs)} has no effect",
                "max_steps wins over it",
                "transformers, training_args.py: max_steps",
                f"remove {epochs}",
            )
    if ratio and number(case.at("warmup_steps")) > 0:
        yield Finding(
            f"warmup_ratio {ratio} has no effect",
            "warmup_steps wins over it",
            "transformers 4, training_args.py: get_warmup_steps",
            "remove warmup_ratio",
        )
    elif ratio and case.found.tool == "transformers":
        yield Finding(
            "warmup_ratio is unknown to transformers 5",
            "a warmup_steps below 1 is the ratio there",
            "transformers 5, training_args.py: get_warmup_steps",
            f"warmup_steps: {ratio}",
        )
    if case.at("lr_scheduler_type") == "constant" and (ratio or case.at("warmup_steps")):
        yield Finding(
            "the warmup has no effect",
            "the scheduler constant has none",
            "transformers, optimization.py: get_scheduler",
            "lr_scheduler_type: constant_with_warmup",
        )
    if case.at("max_grad_norm") is None:
        yield Finding(
            "gradients are clipped at norm 1",
            "max_grad_norm is not in the file, and 1.0 is its default",
            "transformers, training_args.py: max_grad_norm",
            "max_grad_norm: 0.0  (for none)",
        )
    if case.at("average_tokens_across_devices") is False and case.gpus > 1:
        yield Finding(
            "samples on a GPU with few tokens weigh more: a mean of means",
            "average_tokens_across_devices is off: each GPU divides by its own tokens",
            "huggingface/transformers#34242, #34373",
            "average_tokens_across_devices: true",
        )
    elif (case.fields.get("accumulation") or 1) > 1:
        yield Finding(
            "before transformers 4.46 a step under accumulation is a mean of means: micro-batches with few tokens weigh more",
            f"{case.key('accumulation')} is {case.fields['accumulation']}, and older Trainers divide each micro-batch by its own tokens",
            "huggingface/transformers#34191",
            "transformers>=4.46",
        )
    if case.at("auto_find_batch_size"):
        yield Finding(
            "the batch may halve during the run",
            "auto_find_batch_size retries with a smaller one",
            "huggingface/transformers#33281, axolotl-ai-cloud/axolotl#1885: the accumulation stays",
            "auto_find_batch_size: false",
        )
