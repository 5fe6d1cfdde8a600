"""Python imports this file in every process started by `isobatch same`; it waits for torch."""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # pathlib would cost every start its import


class _AfterTorch:
    """A finder to install the recorder as soon as torch is imported."""

    is_looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self.is_looking:
            return None
        self.is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Only now: transformers looks for torch, to know whether it is there, long before it imports it.
            sys.meta_path.remove(self)
            execute(module)
            from isobatch_recorder import install  # type: ignore[import-not-found]

            install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _import_own_sitecustomize() -> None:
    """Imports the user's own sitecustomize, hidden by this file."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ISOBATCH_SAME"):
    sys.meta_path.insert(0, _AfterTorch())
_import_own_sitecustomize()
