"""What the optimizer was made with: the model's parameters, the plan's settings, and in a run that goes on a state."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from isobatch.diagnosis.causes import Cause
from isobatch.errors import InputError
from isobatch.guard.run import Run
from isobatch.guard.wrapping import flat

ROUNDED = 1e-6


def single(optimizer: Any, unchecked: list[str]) -> Any:
    """The torch optimizer inside a wrapper or container: Accelerate's, torchtitan's.

    Raises:
        InputError: it cannot be watched.
    """
    if type(optimizer).__name__ == "AcceleratedOptimizer":
        optimizer = optimizer.optimizer
    several = getattr(optimizer, "optimizers", None)
    if isinstance(several, list | tuple) and several:  # a container's own groups are those of nobody
        if len(several) > 1:
            unchecked.append("optimizers other than the first")
        optimizer = several[0]
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        kind = type(optimizer).__name__
        raise InputError(f"{kind} cannot be watched: give the torch optimizer inside it", field="optimizer")
    return optimizer


def check_parameters(run: Run, model: nn.Module, optimizer: Any) -> None:
    """The optimizer must have some of the model's parameters; others may belong to other optimizers."""
    if flat(model):
        return
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in trained for p in model.parameters()):
        text = f"none of the optimizer's {len(trained)} parameters is one of the model's"
        run.stop(Cause.OPTIMIZER_PARAMETERS, text)


def check_settings(run: Run, optimizer: Any) -> None:
    """Where the recipe has a setting, one group must have the plan's: others may have a factor of their own, or none."""
    recipe, plan, groups = run.plan.recipe, run.plan, optimizer.param_groups
    planned = {
        "momentum": plan.momentum if recipe.momentum is not None else None,
        "betas": plan.betas if recipe.betas is not None else None,
        "eps": plan.eps if recipe.eps is not None else None,
        "weight_decay": plan.weight_decay if recipe.weight_decay else None,
    }
    for name, want in planned.items():
        found = [group[name] for group in groups if name in group]
        if want is not None and found and not any(_close(value, want) for value in found):
            text = f"{name} {_words(found[0])}, {_words(want)} planned"
            run.stop(Cause.ANOTHER_SETTING.likely(name), text, run.witnesses(name))


def _close(found: Any, want: Any) -> bool:
    pairs = zip(found, want, strict=True) if isinstance(want, tuple) else [(found, want)]
    return all(math.isclose(float(a), float(b), rel_tol=ROUNDED) for a, b in pairs)


def _words(value: Any) -> str:
    return (
        f"({', '.join(f'{float(x):.6g}' for x in value)})"
        if isinstance(value, tuple | list)
        else f"{float(value):.6g}"
    )


def check_state(run: Run, optimizer: Any) -> None:
    """A run that goes on must have a state, where its optimizer keeps one."""
    keeps = "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum"))
    if run.start and keeps and not optimizer.state:
        text = f"the optimizer has no state at step {run.step:,}, where the run goes on"
        run.stop(Cause.NEW_STATE, text)
