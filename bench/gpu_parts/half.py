"""GPT-2 in bfloat16 at half of the GPU's memory: does the validation need more than the job?"""

from __future__ import annotations

from typing import Any

import torch

from gpu_parts import models
from gpu_parts.tools import CUDA, DEVICE, alone, bad, free_running, plan, validate, verdicts

LIMIT_SECONDS = 420


def run(small: bool) -> dict[str, Any]:
    """The micro-batch by two sizes of a bare loop, then a validation at it."""
    micro = models.MICRO["gpt2"]
    with alone():
        bare = [free_running(models.gpt2(), n, "bf16", 3) for n in (micro // 2, micro)]
    if CUDA:
        low, high = (one["peak_memory_bytes"] for one in bare)
        per_sample = (high - low) / (micro - micro // 2)
        half = torch.cuda.get_device_properties(DEVICE).total_memory / 2
        micro += int((half - high) / per_sample)
        torch.cuda.empty_cache()
    found = validate(
        plan(1, micro, precision="bf16"),
        "--quick",
        "--workload",
        "gpu_parts.models:gpt2",
        "--phase-seconds",
        "120",
        seconds=340,
    )
    return {"bare": bare, "micro_batch": micro, "verdicts": verdicts(found), "wrong": bad(found)}
