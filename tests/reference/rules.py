"""Every scaling rule, and the values moved beside the learning rate, in NumPy-free float64.

k = new effective batch / tuned effective batch.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

ADAM_LIKE = ("adam", "adamw", "rmsprop", "lars", "lamb")
"""Where `auto` takes the square root on evidence; for lion, muon and adafactor it is assumed."""

DEFAULTS = {
    "adam": (0.9, 0.999, 1e-8),
    "adamw": (0.9, 0.999, 1e-8),
    "rmsprop": (None, 0.99, 1e-8),
    "lamb": (0.9, 0.999, 1e-6),
    "lion": (0.9, 0.99, None),
}
"""beta1, beta2 and eps of torch.optim's classes, RMSprop's alpha as beta2; LAMB's and Lion's are their
papers'.
"""


HOLD_LOSS = ("adascale", "adamscale")
"""Rules under which a step counts for AdaScale's gain."""


class NotPossible(Exception):
    """The rule cannot be applied; the message is the reason's name."""


@dataclass(frozen=True)
class Noise:
    """Measurements of the gradient's noise."""

    scale: float | None = None
    sigma_sq: float | None = None
    mu_sq: float | None = None


def auto(optimizer: str, noise: Noise) -> str:
    """The rule meant by `auto`."""
    if optimizer in ("sgd", "lion", "muon") and noise.scale is not None:
        return "saturating"
    return "linear" if optimizer == "sgd" else "sqrt"


def adascale_gain(k: float, noise: Noise) -> float:
    """r of Johnson et al. 2020, arXiv 2007.05105."""
    if noise.sigma_sq is None or noise.mu_sq is None:
        raise NotPossible("needs_noise")
    return (noise.sigma_sq + noise.mu_sq) / (noise.sigma_sq / k + noise.mu_sq)


def lr_scale(rule: str, tuned: int, new: int, noise: Noise, power: float | None) -> float:
    """lr' / lr of a rule other than `auto`."""
    k = new / tuned
    if rule == "none":
        return 1.0
    if rule == "linear":
        return k
    if rule in ("sqrt", "sde", "sde_smooth"):
        return sqrt(k)
    if rule == "adascale":
        return adascale_gain(k, noise)
    if rule == "adamscale":
        return sqrt(adascale_gain(k, noise))
    if rule == "power":
        if power is None:
            raise NotPossible("needs_power")
        return k**power
    if rule not in ("saturating", "muon", "surge"):
        raise ValueError(f"tests/reference/rules.py knows no rule {rule}")
    if noise.scale is None:
        raise NotPossible("needs_noise")
    if rule == "saturating":
        return (1 + noise.scale / tuned) / (1 + noise.scale / new)
    if rule == "muon":
        return sqrt((1 + noise.scale / tuned) / (1 + noise.scale / new))
    if rule == "surge" and noise.scale == 0:
        return sqrt(tuned / new)
    return surge_curve(noise.scale, new) / surge_curve(noise.scale, tuned)


def surge_curve(scale: float, batch: float) -> float:
    """Li et al. 2024, arXiv 2405.14578, equation 13, up to its constant."""
    return 1 / (0.5 * (sqrt(scale / batch) + sqrt(batch / scale)))


def sde_beta(beta: float, tuned: int, new: int) -> float:
    """β' of Malladi et al. 2022, arXiv 2205.10287, which needs k(1 − β) < 1; 0.9 means nine tenths there.
    Zero stays.
    """
    if beta == 0:
        return 0.0
    if Fraction(new, tuned) * (1 - Fraction(repr(beta))) >= 1:
        raise NotPossible("beta_not_positive")
    return 1 - new / tuned * (1 - beta)


def sde_eps(eps: float, k: float) -> float:
    """ε' of the same."""
    return eps / sqrt(k)


def sde_smooth_beta(beta: float, k: float) -> float:
    """β' = β^k: sde_beta to first order in 1 − β, and above 0 at every k."""
    return beta**k


def floored_beta2(new: float, tuned: float, floor: float) -> float:
    """A lowered β2 goes down to the floor at most; a β2 below the floor stays."""
    return max(new, min(floor, tuned)) if new < tuned else new


def half_life_beta2(beta2: float, k: float) -> float:
    """β2' with the same memory in samples: Marek et al. 2025, arXiv 2507.07101."""
    return beta2**k


def ema_decay(decay: float, k: float) -> float:
    """ρ' of Busbridge et al. 2023, arXiv 2307.13813."""
    return decay**k


def weight_decay(
    optimizer: str,
    decay: str | None,
    value: float,
    k: float,
    scale: float,
    samples: float = 1.0,
    by_length: float = 1.0,
) -> float:
    """λ' of AdamW: the timescale 1/(ηλ) keeps its epochs (Wang & Aitchison 2024, arXiv 2405.13698).

    Args:
        scale: lr'/lr.
        samples: D'/D, the samples of the new run over those of the tuned one.
        by_length: the part of lr'/lr for the run's length.
    """
    if optimizer == "muon" and decay == "sqrt":  # karpathy/nanochat
        return value * sqrt(k) / samples / by_length
    if optimizer != "adamw" or k == samples == 1:
        return value
    if decay == "independent":
        return value * k / samples
    return value * k / scale / samples


def warmup_start(rule: str, k: float, tuned_lr: float) -> float:
    """The first learning rate of a warmup: 0, or the tuned one (Goyal et al. 2017, arXiv 1706.02677, section
    2.2); below k = 2 a part of it, since a run tuned with a warmup starts at 0.
    """
    return tuned_lr * min(1.0, k - 1) if rule == "linear" and k > 1 else 0.0
