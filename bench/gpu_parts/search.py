"""Does the largest micro-batch that the search recommends hold for a real training?"""

from __future__ import annotations

from typing import Any

from gpu_parts import models
from gpu_parts.tools import CUDA, alone, bad, free_running, plan, validate

LIMIT_SECONDS = 400


def run(small: bool) -> dict[str, Any]:
    """The search's answer, and 60 real steps at it."""
    name = "mlp" if small else "gpt2"
    micro, precision = models.MICRO[name], None if small else "bf16"
    limit = [] if CUDA else ["--memory-limit", "0.7"]
    told = validate(
        plan(1, micro, precision=precision),
        "--quick",
        "--find-micro-batch",
        *limit,
        "--workload",
        f"gpu_parts.models:{name}",
        seconds=240,
    )
    search = told.get("report", {}).get("micro_batch_search")
    if search is None or not search["largest_micro_batch"]:
        return {"wrong": [f"no search: {bad(told)}"]}
    size = search["recommended_micro_batch"] or search["largest_micro_batch"]
    with alone():
        try:
            real = free_running(
                getattr(models, name)(), min(size, 64) if small else size, precision, 6 if small else 60
            )
        except RuntimeError as error:
            return {
                "search": search,
                "micro_batch": size,
                "wrong": [f"micro-batch {size} did not hold: {error}"[:400]],
            }
    return {"search": search, "micro_batch": size, "real": real, "wrong": []}
