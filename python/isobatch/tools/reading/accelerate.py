"""Accelerate's launcher configuration: the processes, and little of the training."""

from __future__ import annotations

from isobatch.tools.reading.common import clip
from isobatch.tools.reading.page import Page

NAME = "accelerate"
TITLE = "Accelerate's launcher configuration"
VERSIONS = "0.20 to 1.15"
SIGNS = (
    "compute_environment",
    "distributed_type",
    "num_machines",
    "num_processes",
    "machine_rank",
    "main_training_function",
    "mixed_precision",
    "rdzv_backend",
)


def read(page: Page) -> None:
    """num_processes counts the processes of all machines together."""
    page.whole("num_processes", "gpus", default=1)
    mixed = page.word("mixed_precision", "no")
    if mixed in ("bf16", "fp16"):
        page.give("precision", mixed, "mixed_precision")
    if page.has("gradient_accumulation_steps"):
        page.note(
            "Accelerate rejects gradient_accumulation_steps in this file: set ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
        )
    inner = page.table("deepspeed_config")
    if inner.raw("gradient_accumulation_steps") not in (None, "auto"):
        inner.whole("gradient_accumulation_steps", "accumulation")
    if inner.raw("gradient_clipping") not in (None, "auto"):
        clip(inner, "gradient_clipping")
    parallel = page.table("megatron_lm_config")
    degree = 1
    for key in ("megatron_lm_tp_degree", "megatron_lm_pp_degree"):
        degree *= parallel.whole(key) or 1
    if degree > 1:
        page.give("model_parallel", degree, "megatron_lm_config")
