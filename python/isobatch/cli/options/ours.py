"""Files of ours in a place where another of them belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isobatch.errors import InputError


def refuse_recipe(path: str) -> None:
    """Refuses a recipe where a plan is needed.

    Raises:
        InputError: the file is a recipe; the message has the command that plans it.
    """
    from isobatch.tools.detect import is_recipe

    if is_recipe(_fields(path)):
        raise InputError(
            f"is a recipe: plan it first, by isobatch plan {path} --gpus N -o plan.json", file=path
        )


def is_plan(path: str) -> bool:
    """Whether a file is a plan that was saved."""
    from isobatch.tools import detect

    return detect.is_plan(_fields(path))


def _fields(path: str) -> dict[str, Any]:
    """The table in a file that a recipe or a plan could be; of any other file nothing."""
    from isobatch.recipes.files import read_fields

    if Path(path).suffix not in (".toml", ".yaml", ".yml", ".json") or not Path(path).is_file():
        return {}
    try:
        return read_fields(path)
    except InputError:
        return {}  # who reads it says why
