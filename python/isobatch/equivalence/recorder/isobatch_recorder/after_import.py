"""Patches a module as soon as a script imports it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class AfterImport:
    """A finder, for `sys.meta_path`, to call `patch` with a module after its import.

    It stays until the import: transformers looks for torch, to know whether it is there, long before it
    imports it.
    """

    def __init__(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        self._module, self._patch, self._is_looking = module, patch, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            execute(module)
            self._patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
