"""Functions for other tools' files: the room `tools` hands them down, which imports recipes and plans."""

from collections.abc import Callable
from typing import Any

_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def hand_down(functions: dict[str, Callable[..., Any]]) -> None:
    """Keeps the functions of a room above, by their names."""
    _FUNCTIONS.update(functions)


def of_tools(name: str) -> Callable[..., Any]:
    """Returns a function of the room `tools`.

    >>> of_tools("export").__module__
    'isobatch.tools'
    """
    return _FUNCTIONS[name]
