"""Goodput of a split and the best of all splits, as the formulas stand."""

from collections.abc import Mapping
from typing import Any


def goodput(pair: Mapping[str, Any], micro_batch: int, accumulation: int) -> float:
    batch = pair["replicas"] * micro_batch * accumulation
    compute = pair["compute_constant"] + pair["compute_per_sample"] * micro_batch
    compute = max(compute, pair.get("compute_floor", 0.0))
    gamma = pair.get("overlap", 1.0)
    lead = pair.get("lead", 0.0) * compute
    last = lead + ((compute - lead) ** gamma + pair["sync_seconds"] ** gamma) ** (1 / gamma)
    step = (accumulation - 1) * compute + last + pair.get("update_seconds", 0.0)
    efficiency = (pair["noise_scale"] + pair["tuned_batch"]) / (pair["noise_scale"] + batch)
    return batch / step * efficiency


def optimize(pair: Mapping[str, Any]) -> tuple[float, int, int]:
    """The greatest goodput, its micro-batch and its accumulation; zeros where there is no split."""
    best = (0.0, 0, 0)
    most = pair["max_batch"] // pair["replicas"]
    for accumulation in range(1, most + 1):
        for micro_batch in range(1, min(most // accumulation, pair.get("max_micro_batch", most)) + 1):
            if pair["replicas"] * micro_batch * accumulation >= pair.get("min_batch", pair["tuned_batch"]):
                best = max(best, (goodput(pair, micro_batch, accumulation), micro_batch, accumulation))
    return best
