"""Lets a run watch the steps of its optimizer."""

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

Apply: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Takes an optimizer's step, or skips it."""

_WATCHERS: WeakKeyDictionary[Optimizer, Apply | None] = WeakKeyDictionary()
"""The present watcher of each optimizer; several runs may use an optimizer one after another."""


def watch_steps(optimizer: Optimizer, apply: Apply) -> Callable[[], None]:
    """Passes an optimizer's steps to a watcher in place of the previous one; returns a function to end it."""
    if optimizer not in _WATCHERS:
        _install(optimizer)
    _WATCHERS[optimizer] = apply

    def end() -> None:
        if _WATCHERS.get(optimizer) is apply:
            _WATCHERS[optimizer] = None

    return end


def _install(optimizer: Optimizer) -> None:
    step = optimizer.step

    @wraps(step)
    def watched(owner: Optimizer, *args: Any, **options: Any) -> Any:
        apply = _WATCHERS.get(owner)
        if apply is None:
            return step(*args, **options)
        return apply(lambda: step(*args, **options))

    optimizer.step = MethodType(watched, optimizer)  # type: ignore[method-assign]
