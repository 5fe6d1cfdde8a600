"""Lets ranks share one machine: gloo instead of NCCL, one GPU for several ranks, float32."""

from __future__ import annotations

import os
from typing import Any

import torch

from .record import Recorder


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
        _note_groups(recorder)
    if not recorder.settings["as_is"]:
        _switch_autocast_off(recorder)
        if torch.distributed.is_available():
            leave_compression_out(torch.nn.parallel.DistributedDataParallel, recorder)


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


def _note_groups(recorder: Recorder) -> None:
    meshes: Any = torch.distributed.device_mesh.DeviceMesh
    initialize = meshes.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        recorder.meshes.append(self)

    meshes.__init__ = __init__
    new_group = torch.distributed.new_group

    def note_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        recorder.group_sizes.append(recorder.world if ranks is None else len(ranks))
        return new_group(ranks, *args, **kwargs)

    torch.distributed.new_group = note_group


def leave_compression_out(wrapper: Any, recorder: Recorder) -> None:
    """Reduces gradients in float32 where a hook of torch would do so in half precision."""
    register = wrapper.register_comm_hook

    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        name = getattr(hook, "__name__", "")
        if name in ("bf16_compress_hook", "fp16_compress_hook"):
            recorder.note(f"{name} off", "off")
        else:
            register(self, state, hook)

    wrapper.register_comm_hook = register_comm_hook


def _switch_autocast_off(recorder: Recorder) -> None:
    autocast = torch.autocast
    initialize = autocast.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if self._enabled:
            recorder.note("autocast off", "off")
            self._enabled = False

    autocast.__init__ = __init__  # type: ignore[method-assign]
