"""Two minutes of the same step: drift of time and clocks, and the same bits each time."""

from __future__ import annotations

from typing import Any

from gpu_parts import models
from gpu_parts.tools import bad, plan, validate, verdicts

LIMIT_SECONDS = 300


def run(small: bool) -> dict[str, Any]:
    """The soak's own part of the report, and the clocks."""
    name = "mlp" if small else "gpt2"
    told = validate(
        plan(1, models.MICRO[name], 2, precision="bf16"),
        *("--quick", "--soak", "0.02" if small else "2", "--workload", f"gpu_parts.models:{name}"),
        seconds=280,
    )
    report = told.get("report", {})
    wrong = bad(told) if report.get("soak") else [f"no soak: {bad(told)}"]
    return {
        "soak": report.get("soak"),
        "hosts": report.get("hosts"),
        "verdicts": verdicts(told),
        "wrong": wrong,
    }
