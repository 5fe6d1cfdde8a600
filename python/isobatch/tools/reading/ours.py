"""What files of isobatch's own look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_plan(settings: Mapping[str, Any]) -> bool:
    """Whether these are a saved plan's.

    >>> is_plan({"schema": "isobatch.plan/1"}), is_plan({"effective_batch": 256})
    (True, False)
    """
    return str(settings.get("schema")).startswith("isobatch.plan/")


def is_recipe(settings: Mapping[str, Any]) -> bool:
    """Whether these are a recipe's.

    >>> is_recipe({"effective_batch": 256}), is_recipe({"schema": "isobatch.plan/1"}), is_recipe({"lr": 0.1})
    (True, False, False)
    """
    return "schema" not in settings and (
        "effective_batch" in settings or {"batch_per_gpu", "lr"} <= settings.keys()
    )
