"""What a function that follows a plan was really given."""

from __future__ import annotations

from typing import Any

from isobatch.errors import InputError, must_be
from isobatch.planning.plan import Plan
from isobatch.recipes.recipe import Recipe


def refuse_no_plan(plan: Any) -> None:
    """Refuses what is no plan, and says how to make one of it.

    Raises:
        InputError: it is no Plan.

    >>> refuse_no_plan("plan.json")
    Traceback (most recent call last):
    isobatch.errors.InputError: plan must be a Plan, got the path 'plan.json': Plan.load(path) reads one
    """
    if isinstance(plan, Plan):
        return
    if isinstance(plan, str) or hasattr(plan, "__fspath__"):
        raise InputError(
            f"plan must be a Plan, got the path {str(plan)!r}: Plan.load(path) reads one", field="plan"
        )
    if isinstance(plan, Recipe):
        raise InputError(
            "plan must be a Plan, got a Recipe: isobatch.plan(recipe, gpus) makes one", field="plan"
        )
    raise must_be(
        "a Plan", plan, field="plan", todo="isobatch.plan(recipe, gpus) makes one, Plan.load reads one"
    )


def refuse_no_recipe(recipe: Any, what: str = "a Recipe") -> None:
    """Refuses what is no recipe.

    Raises:
        InputError: it is no Recipe.
    """
    if not isinstance(recipe, Recipe):
        raise must_be(
            what,
            recipe,
            field="recipe",
            todo="Recipe(**fields) makes one, Recipe.load and Recipe.read read one from a file",
        )
