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


def noise_of(measured: list[dict]) -> tuple[float | None, float]:
    """The noise scale of a case, and the part of its training at which it was measured: the latest at which twice the error does not reach the
    figure itself. (None, 0.5) where there is none."""
    usable = [
        row
        for row in measured
        if row["noise_scale"] is not None and 2 * row["noise_error"] < row["noise_scale"]
    ]
    latest = max(usable, key=part_of, default=None)
    return (None, 0.5) if latest is None else (latest["noise_scale"], part_of(latest))


def part_of(measured: dict) -> float:
    """Of the training; the first ones of the file were all measured half-way."""
    return float(measured.get("at", 0.5))


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
