"""For each setting a case with an effect on the plan. The tests of settings take their values from here."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A value other than the default, and a place with an effect: so many GPUs, beside other settings.

    Attributes:
        profile: whether only a plan with a profile depends on it.
        recipe: other fields of the recipe.
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
    "min_micro_batch": Case(8, gpus=64),
    "max_batch": Case(128),
    "batch_tolerance": Case(0.1, gpus=7),
    "split": Case("ragged", gpus=7),
    "micro_batch_multiple": Case(8, gpus=2, beside={"policy": 240}),
    "accumulation_multiple": Case(2),
    "batch_multiple": Case(24),
    "short_epochs": Case(True, recipe={"dataset_size": 100}),
    "ramp_rule": Case("sqrt", recipe={"ramp": "128 128 4096"}),
    "beta2_rule": Case("half_life", beside={"policy": 512}),
    "duration_scale": Case("4^0.3"),
    "deadline_hours": Case(1e-6, profile=True),
    "budget": Case(1e-6, profile=True),
}
