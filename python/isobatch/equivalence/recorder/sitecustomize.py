"""Python imports this file at its start, in every process of a training that `isobatch same` starts; it waits for torch."""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # pathlib would cost every start its import


class _AfterTorch:
    """A finder that installs the recorder as soon as torch is imported: transformers looks for torch before it imports it."""

    def __init__(self) -> None:
        self._looks = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._looks:
            return None
        self._looks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looks = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            execute(module)
            from isobatch_recorder import install  # type: ignore[import-not-found]

            install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _import_own_sitecustomize() -> None:
    """Imports the sitecustomize that this file hides, where the user has one."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ISOBATCH_SAME"):
    sys.meta_path.insert(0, _AfterTorch())
_import_own_sitecustomize()
