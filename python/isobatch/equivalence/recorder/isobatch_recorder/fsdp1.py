"""FSDP1, really sharded: its parameters and gradients are gathered while they are looked at."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .after_import import AfterImport
from .record import Recorder

FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def install(recorder: Recorder) -> None:
    """Waits for a script's import of FSDP1."""
    if FSDP1 in sys.modules:
        _watch_fsdp(sys.modules[FSDP1], recorder)
    else:
        sys.meta_path.insert(0, AfterImport(FSDP1, partial(_watch_fsdp, recorder=recorder)))


def _watch_fsdp(module: Any, recorder: Recorder) -> None:
    sharded = module.FullyShardedDataParallel
    initialize, clip_grad_norm_ = sharded.__init__, sharded.clip_grad_norm_

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
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


def _whole_parameters(recorder: Recorder, sharded: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields all parameters of the models in training with their names."""
    for model in recorder.models:
        with sharded.summon_full_params(model, writeback=False):
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    yield name.replace("_fsdp_wrapped_module.", "").replace("module.", ""), parameter
