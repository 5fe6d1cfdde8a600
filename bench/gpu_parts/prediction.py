"""Does the validator say what the real loop does? Its step against one that runs freely, in all formats; gradient errors against the gates."""

from __future__ import annotations

from typing import Any

from gpu_parts import models
from gpu_parts.tools import alone, bad, free_running, plan, validate

LIMIT_SECONDS = 590
FORMATS = (None, "tf32", "bf16", "fp16")


def run(small: bool) -> dict[str, Any]:
    """By model and format: predicted and measured seconds of a step, their ratio, peak memory, and the gradient's error."""
    steps = 10 if small else 200
    formats = (None, "bf16") if small else FORMATS
    found: dict[str, Any] = {"wrong": []}
    with alone():
        for name in ("mlp",) if small else ("mlp", "resnet50", "gpt2"):
            for precision in formats:
                micro = models.MICRO[name]
                told = validate(
                    plan(1, micro, precision=precision),
                    "--quick",
                    "--workload",
                    f"gpu_parts.models:{name}",
                    seconds=120,
                )
                key = f"{name} {precision or 'fp32'}"
                if "report" not in told or told["report"]["step"] is None:
                    found["wrong"].append(f"{key}: {bad(told)}")
                    continue
                report = told["report"]
                bare = free_running(getattr(models, name)(), micro, precision, steps)
                predicted = report["step"]["planned_step_seconds"]
                gradients = {
                    proof["name"]: (proof["values"].get("relative_l2"), proof["gate"])
                    for proof in report["proofs"]
                    if proof["name"].startswith("gradient")
                }
                found[key] = {
                    "predicted_step_seconds": predicted,
                    "measured_step_seconds": bare["step_seconds"],
                    "ratio": predicted / bare["step_seconds"],
                    "predicted_peak_bytes": max(
                        row["peak_memory_bytes"] for row in report["step"]["micro_batches"]
                    ),
                    "measured_peak_bytes": bare["peak_memory_bytes"],
                    "gradients": gradients,
                }
                found["wrong"] += [f"{key}: {text}" for text in bad(told)]
    return found
