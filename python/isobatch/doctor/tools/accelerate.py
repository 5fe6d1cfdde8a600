"""Accelerate's launcher."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    if case.gpus > 1:
        yield Finding(
            f"a scheduler that accelerator.prepare wraps takes {case.gpus} steps for each step of the optimizer",
            "Accelerate steps it once for every process",
            "accelerate, scheduler.py; huggingface/accelerate#2926, huggingface/diffusers#3954",
            f"build it for total_steps × {case.gpus}, or Accelerator(step_scheduler_with_optimizer=False) and step it yourself",
        )
    if case.at("gradient_accumulation_steps") is not None:
        yield Finding(
            "gradient_accumulation_steps in this file is rejected",
            "the launcher's configuration has no such key",
            "accelerate, commands/config/config_args.py: unknown keys",
            "export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=...",
        )
    written = case.at("num_processes")
    if written is not None and written != case.gpus:
        yield Finding(
            f"{written} processes start, not {case.gpus}",
            "num_processes counts all machines together",
            "accelerate, commands/launch.py: --num_processes",
            f"num_processes: {case.gpus}",
        )
