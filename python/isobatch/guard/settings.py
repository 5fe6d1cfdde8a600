"""What the optimizer has: the model's gradients, the plan's settings, and in a run that goes on a state."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from isobatch.diagnosis.causes import Cause
from isobatch.errors import InputError
from isobatch.guard.run import Run

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
    """The optimizer must have gradients where the model has some: its own copies of the parameters may have them, too."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p.grad is not None for p in model.parameters()) and all(p.grad is None for p in own):
        text = f"the model has gradients, and none of the optimizer's {len(own)} parameters has one"
        run.stop(Cause.OPTIMIZER_PARAMETERS, text)


def clips_itself(optimizer: Any) -> bool:
    """Whether an optimizer clips inside of its step, as LAMB does."""
    return any(
        "clip" in name or "max_grad_norm" in name for group in optimizer.param_groups for name in group
    )


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
