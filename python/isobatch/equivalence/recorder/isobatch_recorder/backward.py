"""Where a gradient is made, clipped and applied: backward passes, clipping and optimizer steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optimizers

from .randomness import Generators
from .record import Recorder, json_number
from .sketch import whole


def install(recorder: Recorder) -> None:
    """Watches every backward pass, clipping and every step of an optimizer of torch."""
    _watch_optimizers(recorder)
    _watch_backward(recorder)
    _measure_clipping(recorder)
    _watch_steps(recorder)


def begin(recorder: Recorder) -> None:
    """Prepares a run with each pass's gradient."""
    if recorder.settings["each_pass"]:
        _synchronize_each_pass()


def _watch_optimizers(recorder: Recorder) -> None:
    initialize = optimizers.Optimizer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if not any(optimizer is self for optimizer in recorder.optimizers):
            recorder.optimizers.append(self)
            recorder.forwards.clear()  # a trial before the training is no part of its first pass

    optimizers.Optimizer.__init__ = __init__  # type: ignore[method-assign]


def _watch_backward(recorder: Recorder) -> None:
    backward = torch.autograd.backward
    generators = Generators(recorder)

    def backward_once(*args: Any, **kwargs: Any) -> Any:
        # A reentrant checkpoint calls it inside.
        losses = _losses(args, kwargs)
        records = not recorder.in_backward and not recorder.busy and recorder.optimizers
        if not records or any(loss.is_meta for loss in losses):
            if not recorder.optimizers:
                recorder.forwards.clear()
            return backward(*args, **kwargs)
        recorder.typed.look()
        before = recorder.gradient() if recorder.settings["each_pass"] else None
        marks = recorder.gradient_marks() if recorder.settings["describe"] else []
        recorder.in_backward = True
        try:
            outcome = backward(*args, **kwargs)
        finally:
            recorder.in_backward = False
        change = None if before is None else recorder.gradient() - before
        recorder.end_pass(change, finite=_are_finite(losses), loss=_loss(losses), before=marks)
        generators.compare()
        return outcome

    torch.autograd.backward = backward_once


def _losses(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Lists the tensors of a backward pass: a pipeline's stage goes back from an edge of the graph."""
    losses = args[0] if args else kwargs["tensors"]
    losses = list(losses) if isinstance(losses, (tuple, list)) else [losses]
    return [loss for loss in losses if isinstance(loss, torch.Tensor)]


def _are_finite(losses: list[torch.Tensor]) -> bool:
    """Tells whether the losses of a backward pass are numbers."""
    return all(bool(torch.isfinite(whole(loss)).all()) for loss in losses)


def _loss(losses: list[torch.Tensor]) -> float | None:
    """Returns the loss of a backward pass; None where a gradient begins it."""
    if not losses or any(loss.numel() != 1 for loss in losses):
        return None
    return json_number(sum(float(whole(loss)) for loss in losses))


def _measure_clipping(recorder: Recorder) -> None:
    """Notes clipping, and applies it only where a run is untouched: it hides a gradient of another size."""
    utils: Any = torch.nn.utils
    module: Any = utils.clip_grad
    clip_grad_norm_, clip_values = module.clip_grad_norm_, module.clip_grad_value_
    scale = getattr(utils, "clip_grads_with_norm_", None)  # the module has it by a private name

    def measure_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        applied = max_norm if recorder.settings["untouched"] else float("inf")
        norm: torch.Tensor = clip_grad_norm_(tensors, applied, *args, **kwargs)
        recorder.norms.append((float(whole(norm)), float(max_norm)))
        return norm

    def note_scale(
        parameters: Any, max_norm: float, total_norm: torch.Tensor, *args: Any, **kwargs: Any
    ) -> None:
        recorder.norms.append((float(whole(total_norm)), float(max_norm)))
        if scale is not None and recorder.settings["untouched"]:
            scale(parameters, max_norm, total_norm, *args, **kwargs)

    def note_value(*args: Any, **kwargs: Any) -> None:
        if recorder.settings["untouched"]:
            clip_values(*args, **kwargs)
        else:
            recorder.note("clip_grad_value_ not applied")

    for place in (utils, module):
        place.clip_grad_norm_ = measure_norm
        place.clip_grad_value_ = note_value
    if scale is not None:
        utils.clip_grads_with_norm_ = note_scale


def _watch_steps(recorder: Recorder) -> None:
    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if any(_belongs_to(optimizer, outer) for outer in stepping if outer is not optimizer):
            recorder.leave_out(optimizer)
            return None
        stepping.append(optimizer)
        if recorder.settings["still"] and all("lr" in group for group in optimizer.param_groups):
            rates[id(optimizer)] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        arguments = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure") or next(filter(callable, arguments), None)
        if closure is None:
            recorder.write_step(optimizer)
            return None

        def call_closure(*args: Any, **kwargs: Any) -> Any:
            """Writes the gradient inside the step, as Lightning and LBFGS have it."""
            outcome = closure(*args, **kwargs)
            recorder.write_step(optimizer)
            return outcome

        if "closure" in kwargs:
            return args, {**kwargs, "closure": call_closure}
        return tuple(call_closure if argument is closure else argument for argument in args), kwargs

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer not in stepping:
            return
        stepping.remove(optimizer)
        for group, rate in zip(optimizer.param_groups, rates.pop(id(optimizer), ())):
            group["lr"] = rate
        recorder.end_step(optimizer)

    rates: dict[int, list[Any]] = {}
    stepping: list[torch.optim.Optimizer] = []
    optimizers.register_optimizer_step_pre_hook(before_step)
    optimizers.register_optimizer_step_post_hook(after_step)


def _belongs_to(optimizer: torch.optim.Optimizer, outer: torch.optim.Optimizer) -> bool:
    """Tells whether a step is part of another's: each rank's share under ZeroRedundancyOptimizer, SAM's."""
    known = {id(p) for group in outer.param_groups for p in group["params"]}
    return all(id(p) in known for group in optimizer.param_groups for p in group["params"])


def _synchronize_each_pass() -> None:
    """Synchronizes every pass of FSDP2: without, its own buffer holds the gradients."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return
    synchronize = FSDPModule.set_requires_gradient_sync
    FSDPModule.set_requires_gradient_sync = (  # type: ignore[method-assign]
        lambda self, flag, *args, **kwargs: synchronize(self, True, *args, **kwargs)
    )
