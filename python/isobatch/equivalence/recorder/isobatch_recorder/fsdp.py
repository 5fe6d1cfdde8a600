"""FSDP1's gradients: the model stays whole on each rank, and the ranks' gradients are averaged as before."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from .after_import import AfterImport
from .record import Recorder

MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"


def install(recorder: Recorder) -> None:
    """Has FSDP1 keep its parameters whole, as soon as a script imports it."""
    if MODULE in sys.modules:
        _keep_whole(sys.modules[MODULE], recorder)
    else:
        sys.meta_path.insert(0, AfterImport(MODULE, partial(_keep_whole, recorder=recorder)))


def _keep_whole(module: Any, recorder: Recorder) -> None:
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
