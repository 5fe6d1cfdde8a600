"""Faults on one of two ranks: is the rank named, and in what time?"""

from __future__ import annotations

from typing import Any

from gpu_parts.tools import plan, validate

LIMIT_SECONDS = 590
FAULTS = {
    "killed": ("ranks_alive", "dead_rank"),
    "out_of_memory": ("ranks_alive", "out_of_memory"),
    "hangs": ("ranks_alive", "rank_failed"),
    "asserts": ("ranks_alive", "rank_failed"),
    "flips": ("same_bits", "silent_corruption"),
}


def run(small: bool) -> dict[str, Any]:
    """By fault: the proof that failed, whom it names, its cause."""
    found: dict[str, Any] = {"wrong": []}
    for name in ("killed", "out_of_memory", "asserts") if small else FAULTS:
        proof_name, cause = FAULTS[name]
        soak = ["--soak", "0.2"] if name == "flips" else []
        told = validate(
            plan(2, 8),
            *(
                "--quick",
                "--noise-steps",
                "0",
                "--phase-seconds",
                "20",
                "--workload",
                f"gpu_parts.models:{name}",
                *soak,
            ),
            ranks=2,
            seconds=110,
        )
        proofs = {proof["name"]: proof for proof in told.get("report", {}).get("proofs", [])}
        proof = proofs.get(proof_name, {})
        causes = (proof.get("diagnosis") or {}).get("causes", [])
        text = proof.get("text", told.get("said", ""))[-400:]
        found[name] = {
            "verdict": proof.get("verdict"),
            "text": text,
            "causes": causes,
            "command_seconds": told["command_seconds"],
        }
        if cause not in causes or "rank 1" not in text:
            found["wrong"].append(
                f"{name}: {proof_name} should say {cause} of rank 1, and says {causes}: {text}"
            )
    return found
