"""For each setting a case in which it changes the plan. The tests of settings take their values from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A value that is not the default, and where it matters: on so many GPUs, beside other settings.

    Attributes:
        profile: whether only a plan with a profile depends on it.
        recipe: fields of the recipe that are others.
    """

    value: Any
    gpus: int = 8
    beside: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    profile: bool = False


RECIPE = {
    "effective_batch": 256,
    "lr": 1e-3,
    "optimizer": "adamw",
    "gpus": 8,
    "micro_batch": 32,
    "duration": "1000st",
}
"""Of each case."""

CASES = {
    "policy": Case("grow", gpus=16),
    "rule": Case("linear", gpus=16, beside={"policy": "grow"}),
    "max_micro_batch": Case(4),
    "fixed_micro_batch": Case(8),
    "min_micro_batch": Case(8, gpus=64),
    "max_batch": Case(128),
    "batch_tolerance": Case(0.1, gpus=7),
    "decrease_batch": Case(True, gpus=7),
    "micro_batch_multiple": Case(8, gpus=2, beside={"policy": 240}),
    "require_multiple": Case(True, beside={"micro_batch_multiple": 5}),
    "accumulation_multiple": Case(2),
    "min_accumulation": Case(2),
    "batch_multiple": Case(24),
    "ragged": Case(True, gpus=7),
    "uneven": Case(True, gpus=7),
    "short_epochs": Case(True, recipe={"dataset_size": 100}),
    "ramp_rule": Case("sqrt", recipe={"ramp": "128 128 4096"}),
    "beta_half_life": Case(True, beside={"policy": 512}),
    "min_beta2": Case(0.95, beside={"policy": 32768, "beta_half_life": True}),
    "muon_decay": Case(True, beside={"policy": 1024}, recipe={"optimizer": "muon", "weight_decay": 0.1}),
    "duration_ratio": Case(4.0, beside={"duration_power": 0.5}),
    "duration_power": Case(0.3, beside={"duration_ratio": 4.0}),
    "deadline_hours": Case(1e-6, profile=True),
    "budget": Case(1e-6, profile=True),
}
