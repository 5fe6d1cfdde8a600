"""What each rule multiplies the learning rate by, and the variants of Adam's betas that are tried beside it."""

from __future__ import annotations

import math

BASE = 64
RULES = ("none", "sqrt", "linear", "saturating", "surge", "muon")
VARIANTS = ("half_life", "sde", "sde_smooth")


def scales(k: float, noise: float | None) -> dict[str, float]:
    """By rule; those that need the noise scale only where it is known."""
    found = {"none": 1.0, "sqrt": math.sqrt(k), "linear": k}
    if noise:
        small, large = noise / BASE, noise / (BASE * k)
        found["saturating"] = (1 + small) / (1 + large)
        found["surge"] = (math.sqrt(small) + math.sqrt(1 / small)) / (math.sqrt(large) + math.sqrt(1 / large))
        found["muon"] = math.sqrt((1 + small) / (1 + large))
    return found


def variants(
    k: float, betas: tuple[float, float], eps: float
) -> dict[str, tuple[float, tuple[float, float], float]]:
    """√k with other betas and eps: β2' = β2^k; Malladi's β' = 1 − k(1−β) with eps/√k, where that leaves β above 0; β' = β^k for both."""
    root = math.sqrt(k)
    found = {
        "half_life": (root, (betas[0], betas[1] ** k), eps),
        "sde_smooth": (root, (betas[0] ** k, betas[1] ** k), eps / root),
    }
    if k * (1 - min(betas)) < 1:
        found["sde"] = (root, (1 - k * (1 - betas[0]), 1 - k * (1 - betas[1])), eps / root)
    return found
