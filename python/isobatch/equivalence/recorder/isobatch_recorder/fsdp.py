"""FSDP in float32; the parameters and gradients of FSDP1 are gathered while they are looked at."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .after_import import AfterImport
from .record import Recorder
from .world import leave_compression_out

FSDP = "torch.distributed.fsdp"
HALF = (torch.bfloat16, torch.float16)


def install(recorder: Recorder) -> None:
    """Waits for a script's import of FSDP."""
    if FSDP in sys.modules:
        _watch_fsdp(sys.modules[FSDP], recorder)
    else:
        sys.meta_path.insert(0, AfterImport(FSDP, partial(_watch_fsdp, recorder=recorder)))


def _watch_fsdp(module: Any, recorder: Recorder) -> None:
    for policy in ("MixedPrecision", "MixedPrecisionPolicy"):
        if hasattr(module, policy):
            _keep_float32(getattr(module, policy), recorder)
    sharded = module.FullyShardedDataParallel
    if not recorder.settings["as_is"]:
        leave_compression_out(sharded, recorder)
    initialize, clip_grad_norm_ = sharded.__init__, sharded.clip_grad_norm_

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if recorder.on_cpu and kwargs.pop("cpu_offload", None) is not None:
            recorder.note("cpu_offload of FSDP off", "off")  # it waits for a GPU's stream
        initialize(self, *args, **kwargs)
        recorder.whole_tensors = partial(_whole_parameters, recorder, sharded)

    def measure_norm(self: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        before = len(recorder.norms)
        norm: torch.Tensor = clip_grad_norm_(self, float("inf"), *args, **kwargs)
        # An unsharded model goes through torch's own function.
        recorder.norms[before:] = [(float(norm), float(max_norm))]
        return norm

    sharded.__init__, sharded.clip_grad_norm_ = __init__, measure_norm
    no_sync = sharded.no_sync

    def synchronize(self: Any) -> Any:
        # Without synchronization its own buffer holds a pass's gradients.
        return contextlib.nullcontext() if recorder.settings["each_pass"] else no_sync(self)

    sharded.no_sync = synchronize


def _keep_float32(policy: Any, recorder: Recorder) -> None:
    """Leaves half precision out of a policy: its rounding is larger than most differences of splits."""
    initialize = policy.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if recorder.in_float32 and any(value in HALF for value in (*args, *kwargs.values())):
            recorder.note(f"{policy.__name__} of FSDP off", "off")
            args = tuple(None if value in HALF else value for value in args)
            kwargs = {name: None if value in HALF else value for name, value in kwargs.items()}
        initialize(self, *args, **kwargs)

    policy.__init__ = __init__


def _whole_parameters(recorder: Recorder, sharded: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields all parameters of the models in training with their names."""
    for model in recorder.models:
        with sharded.summon_full_params(model, writeback=False):
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    yield name.replace("_fsdp_wrapped_module.", "").replace("module.", ""), parameter
