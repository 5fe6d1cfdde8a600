"""Two gloo ranks on the one GPU, against two on the CPU: function only. No time of this is ever a figure."""

from __future__ import annotations

from typing import Any

from gpu_parts.tools import bad, plan, validate, verdicts

LIMIT_SECONDS = 300
FUNCTION = (
    "effective_batch",
    "epoch",
    "loss",
    "gradient",
    "weights",
    "update",
    "equal_gradients",
    "equal_weights",
    "all_reduce",
)


def run(small: bool) -> dict[str, Any]:
    """The proofs of both, which must agree."""
    planned = plan(2, 8, 2)
    here, cpu = (
        validate(planned, "--quick", ranks=2, device=device, seconds=140) for device in ("auto", "cpu")
    )
    mine, theirs = verdicts(here), verdicts(cpu)
    differing = [
        f"{name}: {mine.get(name)} here, {theirs.get(name)} on the CPU"
        for name in FUNCTION
        if mine.get(name) != theirs.get(name)
    ]
    return {"here": mine, "cpu": theirs, "wrong": [*bad(here), *bad(cpu), *differing]}
