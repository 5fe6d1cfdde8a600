"""Backward passes and optimizer steps: where a gradient is made, and where it is applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from .randomness import Generators
from .record import Recorder


def install(recorder: Recorder) -> None:
    """Watches every backward pass and every step of an optimizer of torch."""
    _watch_optimizers(recorder)
    _watch_backward(recorder)
    _watch_steps(recorder)
    if recorder.settings["each_pass"]:
        _synchronize_each_pass()


def _watch_optimizers(recorder: Recorder) -> None:
    initialize = optimizers.Optimizer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if not any(optimizer is self for optimizer in recorder.optimizers):
            recorder.optimizers.append(self)

    optimizers.Optimizer.__init__ = __init__  # type: ignore[method-assign]


def _watch_backward(recorder: Recorder) -> None:
    backward = torch.autograd.backward
    depth = 0
    generators = Generators(recorder)

    def backward_once(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth or recorder.busy or not recorder.optimizers:  # a reentrant checkpoint calls it inside
            return backward(*args, **kwargs)
        each_pass = recorder.settings["each_pass"]
        before = recorder.gradient() if each_pass else None
        depth += 1
        recorder.in_backward = True
        try:
            outcome = backward(*args, **kwargs)
        finally:
            depth -= 1
            recorder.in_backward = False
        recorder.end_pass(None if before is None else recorder.gradient() - before)
        generators.compare()
        return outcome

    torch.autograd.backward = backward_once


def _watch_steps(recorder: Recorder) -> None:
    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        arguments = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure") or next(
            (argument for argument in arguments if callable(argument)), None
        )
        if closure is None:
            recorder.write_step(optimizer)
            return None
        wrapped = _after(closure, lambda: recorder.write_step(optimizer))
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return tuple(wrapped if argument is closure else argument for argument in args), kwargs

    optimizers.register_optimizer_step_pre_hook(before_step)


def _after(closure: Callable[..., Any], write: Callable[[], None]) -> Callable[..., Any]:
    """Wraps a closure for the gradient inside the step, as Lightning and LBFGS have them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        outcome = closure(*args, **kwargs)
        write()
        return outcome

    return call


def _synchronize_each_pass() -> None:
    """Synchronizes every pass of FSDP2, whose own buffer holds gradients without synchronization."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return
    synchronize = FSDPModule.set_requires_gradient_sync
    FSDPModule.set_requires_gradient_sync = (  # type: ignore[method-assign]
        lambda self, flag, *args, **kwargs: synchronize(self, True, *args, **kwargs)
    )
