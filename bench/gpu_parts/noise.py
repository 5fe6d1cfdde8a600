"""The gradient noise scale on this device against the CPU's, of a workload whose noise is known: 9 samples."""

from __future__ import annotations

from typing import Any

from gpu_parts.tools import plan, validate

LIMIT_SECONDS = 300
KNOWN = 9.0


def run(small: bool) -> dict[str, Any]:
    """Both figures, each with its standard error, from two ranks (gloo, if they share a GPU)."""
    found: dict[str, Any] = {"known": KNOWN, "wrong": []}
    for device in ("auto", "cpu"):
        told = validate(
            plan(2, 8, optimizer="sgd"),
            *(
                "--quick",
                "--workload",
                "gpu_parts.models:known_noise",
                "--noise-steps",
                "8" if small else "64",
            ),
            ranks=2,
            device=device,
            seconds=140,
        )
        noise = told.get("report", {}).get("noise") or {}
        found[device] = noise
        scale, error = noise.get("noise_scale"), noise.get("standard_error")
        if scale is None or error is None or abs(scale - KNOWN) > 4 * error:
            found["wrong"].append(f"{device}: {scale} ± {error}, where {KNOWN} is known")
    return found
