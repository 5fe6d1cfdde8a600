"""A plan handed to a training script: its decisions as environment variables, and all of it as a file."""

import os
from collections.abc import Mapping
from typing import Any

from isobatch import _core
from isobatch.errors import InputError, missing
from isobatch.files.texts import number_text
from isobatch.planning.plan import FeasiblePlan, Plan

PLAN = "ISOBATCH_PLAN"
"""The variable with the path of the saved plan."""
_OF_PLAN = tuple(name for name, *_, role in _core.results() if role == "decision")
_OF_RECIPE = ("schedule", "optimizer", "clip_norm", "precision", "ramp")
DECISIONS = (*_OF_PLAN, *_OF_RECIPE)
"""Names of `parts`."""


def parts(plan: Any) -> dict[str, Any]:
    """Names a plan's decisions; each writer of a tool's file says one or lists it as left out."""
    decisions = {name: getattr(plan, name) for name in _OF_PLAN}
    decisions |= {name: getattr(plan.recipe, name) for name in _OF_RECIPE}
    schedule = decisions["schedule"]
    return decisions | {"schedule": schedule if isinstance(schedule, str) else None}


def value_text(value: Any) -> str:
    """Writes a decision for a command line and a variable: a number has one form in both."""
    if isinstance(value, tuple):
        return ";".join(map(value_text, value))
    return number_text(value) if type(value) is float else str(value)


def variables(plan: Any) -> dict[str, str]:
    """Names the plan's decisions as environment variables, without unknown ones."""
    return {
        f"ISOBATCH_{name.upper()}": value_text(value)
        for name, value in {"world_size": plan.world_size, **parts(plan)}.items()
        if value is not None
    }


def environment_with(plan: Any, path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment with the plan's decisions and its file; none of an outer plan is left there."""
    stale = {f"ISOBATCH_{name.upper()}" for name in DECISIONS}
    rest = {name: text for name, text in environment.items() if name not in stale}
    return {**rest, **variables(plan), PLAN: path}


def handed_plan(environment: Mapping[str, str] = os.environ) -> FeasiblePlan:
    """Loads the plan handed to this process by `isobatch exec`."""
    path = environment.get(PLAN)
    if not path:
        raise missing(PLAN, "start the script by isobatch exec FILE -- COMMAND, or pass a plan")
    if not os.path.exists(path):  # noqa: PTH110 - as the variable has it
        raise InputError(
            f"{PLAN} names a file that is not on this host: put isobatch exec behind the launcher "
            "(srun isobatch exec …), or give it -o FILE on a disk that all hosts share",
            file=path,
        )
    return Plan.load(path).require()
