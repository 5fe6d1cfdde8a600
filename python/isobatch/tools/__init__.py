"""Other tools' files: read as recipes, checked before they run, written from plans. A file for each tool."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from isobatch.recipes.foreign import hand_down


def _when_called(module: str, name: str) -> Callable[..., Any]:
    """Makes a function with a late import: of its module, at the first call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)(*args, **kwargs)

    return call


hand_down(
    {
        "export": _when_called("export", "export"),
        "read_recipe": _when_called("read", "read_recipe"),
        "refuse_other_tools": _when_called("detect", "refuse_other_tools"),
    }
)
