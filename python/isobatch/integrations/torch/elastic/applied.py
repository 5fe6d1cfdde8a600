"""Lets a run watch the steps of its optimizer."""

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch.optim import Optimizer


class StepWatcher(Protocol):
    """Decides on each step of an optimizer."""

    def apply_step(self, step: Callable[[], Any]) -> Any:
        """Takes the step, or skips it."""


_WATCHERS: WeakKeyDictionary[Optimizer, StepWatcher | None] = WeakKeyDictionary()
"""The present watcher of each optimizer; several runs may use an optimizer one after another."""


class StepWatch:
    """Lets a run watch the steps of an optimizer until `end`; it replaces the previous run's watcher."""

    def __init__(self, optimizer: Optimizer, watcher: StepWatcher) -> None:
        self._optimizer, self._watcher = optimizer, watcher
        if optimizer not in _WATCHERS:
            _install(optimizer)
        _WATCHERS[optimizer] = watcher

    def end(self) -> None:
        """Stops watching the optimizer."""
        if _WATCHERS.get(self._optimizer) is self._watcher:
            _WATCHERS[self._optimizer] = None


def _install(optimizer: Optimizer) -> None:
    step = optimizer.step

    @wraps(step)
    def watched(owner: Optimizer, *args: Any, **options: Any) -> Any:
        watcher = _WATCHERS.get(owner)
        if watcher is None:
            return step(*args, **options)
        return watcher.apply_step(lambda: step(*args, **options))

    optimizer.step = MethodType(watched, optimizer)  # type: ignore[method-assign]
