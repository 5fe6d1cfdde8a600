"""Lets ranks share one machine: gloo instead of NCCL, one GPU for several ranks, float32, FSDP1 unsharded."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import torch

from .after_import import AfterImport
from .record import Recorder

FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def install(recorder: Recorder) -> None:
    """Patches process groups and autocast."""
    shared = (
        not torch.cuda.is_available() or int(os.environ.get("WORLD_SIZE", "1")) > torch.cuda.device_count()
    )
    if shared:
        if torch.distributed.is_available():
            _use_gloo(recorder)
        if torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
            os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    if torch.distributed.is_available():
        _note_meshes(recorder)
    if not recorder.settings["as_is"]:
        _switch_autocast_off(recorder)


def _use_gloo(recorder: Recorder) -> None:
    distributed = torch.distributed
    init_process_group = distributed.init_process_group

    def init_with_gloo(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "nccl" in str(backend or ""):
            recorder.note("gloo in the place of NCCL")
            backend = "gloo"
        kwargs.pop("device_id", None)
        return init_process_group(backend, *args, **kwargs)

    distributed.init_process_group = init_with_gloo
    distributed.distributed_c10d.init_process_group = init_with_gloo


def _note_meshes(recorder: Recorder) -> None:
    meshes: Any = torch.distributed.device_mesh.DeviceMesh
    initialize = meshes.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        recorder.meshes.append(self)

    meshes.__init__ = __init__


def _switch_autocast_off(recorder: Recorder) -> None:
    autocast = torch.autocast
    initialize = autocast.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if self._enabled:
            recorder.note("autocast off")
            self._enabled = False

    autocast.__init__ = __init__  # type: ignore[method-assign]


def keep_whole(recorder: Recorder) -> None:
    """Has FSDP1 keep its parameters whole, as soon as a script imports it; gradients are still averaged."""
    if FSDP1 in sys.modules:
        _switch_sharding_off(sys.modules[FSDP1], recorder)
    else:
        sys.meta_path.insert(0, AfterImport(FSDP1, partial(_switch_sharding_off, recorder=recorder)))


def _switch_sharding_off(module: Any, recorder: Recorder) -> None:
    sharded = module.FullyShardedDataParallel
    initialize = sharded.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = module.ShardingStrategy.NO_SHARD
        if len(args) > 2:
            args = (*args[:2], strategy, *args[3:])
        else:
            kwargs["sharding_strategy"] = strategy
        recorder.note("sharding by FSDP1 off")
        initialize(self, *args, **kwargs)

    sharded.__init__ = __init__
