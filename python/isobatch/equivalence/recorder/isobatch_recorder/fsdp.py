"""FSDP1's gradients: the model stays whole on each rank, and the ranks' gradients are averaged as before."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from .record import Recorder

MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"


def install(recorder: Recorder) -> None:
    """Has FSDP1 keep its parameters whole, as soon as a script imports it."""
    if MODULE in sys.modules:
        _keep_whole(sys.modules[MODULE], recorder)
    else:
        sys.meta_path.insert(0, _AfterImport(recorder))


class _AfterImport:
    """A finder to patch the module of FSDP1 after its import."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _keep_whole(module, self._recorder)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


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
