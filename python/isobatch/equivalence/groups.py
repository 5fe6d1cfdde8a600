"""An optimizer's settings beside those of a plan."""

import math
from collections.abc import Mapping
from typing import Any

import torch

KINDS: dict[type, str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
}
TOLERANCE = 1e-6


def planned_settings(plan: Any) -> dict[str, Any]:
    """Returns a plan's optimizer settings by their names in a parameter group; None: not in the recipe."""
    recipe = plan.recipe
    return {
        "momentum": plan.momentum if recipe.momentum is not None else None,
        "betas": plan.betas if recipe.betas is not None else None,
        "eps": plan.eps if recipe.eps is not None else None,
        "weight_decay": plan.weight_decay if recipe.weight_decay else None,
    }


def differing_setting(
    optimizer: Any, kind: str | None, settings: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Finds a setting of an optimizer with another value than planned, in all parameter groups.

    A group may have a factor of its own, or no decay: one group with the planned value is enough. An
    optimizer of an unknown class is compared by its settings alone.

    >>> weights = [torch.nn.Parameter(torch.zeros(1))]
    >>> differing_setting(torch.optim.SGD(weights, lr=0.1), "adamw", {})
    ('another optimizer', 'the optimizer is SGD, adamw planned')
    """
    groups = optimizer.param_groups
    own = KINDS.get(type(optimizer))
    decays = any(group.get("weight_decay") for group in groups)
    same = own == kind or ({own, kind} == {"adam", "adamw"} and not decays)
    if own is not None and kind in KINDS.values() and not same:
        return "another optimizer", f"the optimizer is {type(optimizer).__name__}, {kind} planned"
    for name, planned in settings.items():
        values = [group[name] for group in groups if name in group]
        if planned is not None and values and not any(_close(value, planned) for value in values):
            return name, f"{name} {_text(values[0])}, {_text(planned)} planned"
    return None


def _close(value: Any, planned: Any) -> bool:
    pairs = zip(value, planned, strict=True) if isinstance(planned, tuple) else [(value, planned)]
    return all(math.isclose(float(a), float(b), rel_tol=TOLERANCE) for a, b in pairs)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(f'{float(number):.6g}' for number in value)})"
    return f"{float(value):.6g}"
