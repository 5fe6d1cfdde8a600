"""DeepSpeed's engine, asked by its change of the weights: it keeps gradients in buffers of its own.

In a step that is asked, the engine's optimizer puts each gradient in the place of its weight, the engine
spreads these over the ranks as it does with weights, and the parameters are read whole: they are the
gradient of the step. Then all weights are put back. Other steps are the optimizer's own; their update is
recorded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .after_import import AfterImport
from .gradients import put_gradient
from .record import Recorder, json_number
from .rounding import shake

ENGINE = "deepspeed.runtime.engine"
MEGATRON = "megatron.core.optimizer.distrib_optimizer"
PRECISIONS = ("bf16", "bfloat16", "fp16", "amp")


def install(recorder: Recorder) -> None:
    """Waits for a script's import of DeepSpeed, or of Megatron."""
    sys.meta_path.insert(0, AfterImport(ENGINE, partial(_watch_engine, recorder=recorder)))
    if recorder.on_cpu:
        sys.meta_path.insert(0, AfterImport(MEGATRON, _refuse_megatron))


def _refuse_megatron(module: Any) -> None:
    """Says why Megatron's distributed optimizer does not run: its own error speaks of tensor types."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            "isobatch same cannot ask Megatron's DistributedOptimizer here: it takes parameters on a GPU "
            "alone. Ask with --device cuda, or leave out use_distributed_optimizer"
        )

    module.DistributedOptimizer.__init__ = __init__


def _watch_engine(module: Any, recorder: Recorder) -> None:
    engines = module.DeepSpeedEngine
    initialize, take_step = engines.__init__, engines._take_model_step
    limits: dict[int, float] = {}

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with recorder.unseen():  # it steps with gradients of 0, to make the optimizer's state
            initialize(self, *args, **kwargs)
        if (limit := float(self.gradient_clipping() or 0.0)) > 0:
            limits[id(self)] = limit
            self._config.gradient_clipping = math.inf  # measured, not applied
            if hasattr(self.optimizer, "clip_grad"):
                self.optimizer.clip_grad = math.inf

    def _take_model_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = recorder.number_of(self.basic_optimizer)
        if recorder.busy or number is None:
            return take_step(self, *args, **kwargs)
        # Another engine of the script, such as a frozen reference, has parameters of its own.
        recorder.whole_tensors = partial(_whole_parameters, self.module)
        with recorder.unseen():
            step = recorder.steps.get(number, 0)
            record, before = recorder.describe(number, self.basic_optimizer), recorder.weights()
            record["measured"] = "update"
            is_asked = step == 0 or recorder.settings["singles"]
            with _own_step(self, step, recorder) if not is_asked else _asked_step(self):
                outcome = take_step(self, *args, **kwargs)
                after = recorder.weights()
            if id(self) in limits:
                norm = float(self.get_global_grad_norm() or 0.0)
                record["norms"].append([json_number(norm), limits[id(self)]])
            gradient = _without_unstepped(before, after, record["sizes"]) if is_asked else before - after
            recorder.save(record, [gradient, before])
            recorder.save_weights(number, before if is_asked else after)
        recorder.whole_tensors = None
        return outcome

    engines.__init__, engines._take_model_step = __init__, _take_model_step
    _take_plain_ops(recorder)
    if not recorder.settings["as_is"]:
        _switch_precision_off(recorder)


def _whole_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters to train with their names, each gathered from all ranks while it is looked at."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            whole_shape = getattr(parameter, "ds_shape", parameter.shape)  # DeepSpeed's
            with _gathered(parameter) if parameter.shape != whole_shape else contextlib.nullcontext():
                yield name, parameter


def _gathered(parameter: torch.Tensor) -> Any:
    return sys.modules["deepspeed"].zero.GatheredParameters([parameter])


@contextlib.contextmanager
def _asked_step(engine: Any) -> Iterator[None]:
    """Has the optimizer put gradients in the place of weights; all weights are put back at the end."""
    held = [tensor for p in engine.module.parameters() for tensor in (p, getattr(p, "ds_tensor", None))]
    saved = [(tensor, tensor.data.clone()) for tensor in held if tensor is not None]

    def put_gradients(*args: Any, **kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                saved.append((parameter, parameter.data.clone()))
                put_gradient(parameter)

    optimizer = engine.basic_optimizer
    with _replaced_step(optimizer, put_gradients):
        yield
    for tensor, entries in saved:
        if tensor.data.shape == entries.shape:
            tensor.data.copy_(entries)


@contextlib.contextmanager
def _own_step(engine: Any, step: int, recorder: Recorder) -> Iterator[None]:
    """Lets the optimizer take its own step, with noise of the size of rounding where the run asks for it."""
    optimizer = engine.basic_optimizer
    take = optimizer.step

    def shake_and_step(*args: Any, **kwargs: Any) -> Any:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        shake([parameter.grad for parameter in parameters if parameter.grad is not None], step)
        return take(*args, **kwargs)

    with (
        _replaced_step(optimizer, shake_and_step) if recorder.settings["shake"] else contextlib.nullcontext()
    ):
        yield


@contextlib.contextmanager
def _replaced_step(optimizer: Any, step: Any) -> Iterator[None]:
    before = vars(optimizer).get("step")
    optimizer.step = step
    try:
        yield
    finally:
        if before is None:
            del optimizer.step
        else:
            optimizer.step = before


def _without_unstepped(before: torch.Tensor, after: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Returns the entries in the place of the weights: 0 for a tensor that kept its weights."""
    parts = zip(torch.split(before, sizes), torch.split(after, sizes))
    unstepped = [bool(torch.equal(*pair)) for pair in parts]
    return after * (1 - torch.tensor(unstepped, dtype=after.dtype)).repeat_interleave(torch.tensor(sizes))


class _Stand(type):
    """The class of a stand-in for an optimizer: DeepSpeed asks whether a script's own is an instance."""

    def __instancecheck__(cls, optimizer: Any) -> bool:
        return isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))


def _take_plain_ops(recorder: Recorder) -> None:
    """Takes torch's optimizers in the place of compiled ones.

    A build takes minutes; ended by a time limit it leaves a lock, for which each later start waits.
    """

    def plain(name: str) -> Any:
        def make(parameters: Any, **settings: Any) -> torch.optim.Optimizer:
            recorder.note(f"torch's Adam in the place of {name}")
            decoupled = settings.get("adam_w_mode", True) and settings.get("adamw_mode", True)
            own = {key: settings[key] for key in ("lr", "betas", "eps", "weight_decay") if key in settings}
            return (torch.optim.AdamW if decoupled else torch.optim.Adam)(parameters, **own)

        return _Stand(name, (), {"__new__": lambda cls, *args, **settings: make(*args, **settings)})

    if not torch.cuda.is_available():
        for name in ("FusedAdam", "DeepSpeedCPUAdam"):
            setattr(sys.modules["deepspeed.ops.adam"], name, plain(name))
        communication: Any = sys.modules["deepspeed.comm.torch"]
        communication.build_shm_op = lambda: None


def _switch_precision_off(recorder: Recorder) -> None:
    configuration: Any = sys.modules["deepspeed.runtime.config"].DeepSpeedConfig
    initialize = configuration.__init__

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(config, (str, os.PathLike)) and os.path.exists(config):
            with open(config, encoding="utf-8") as file:
                config = json.load(file)
        if isinstance(config, dict):
            for name in PRECISIONS:
                if isinstance(config.get(name), dict) and config[name].get("enabled"):
                    config = {**config, name: {**config[name], "enabled": False}}
                    recorder.note(f"{name} of DeepSpeed off", "off")
        initialize(self, config, *args, **kwargs)

    configuration.__init__ = __init__
