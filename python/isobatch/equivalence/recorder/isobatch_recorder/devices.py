"""On a machine without a GPU: what a script asks of CUDA is done on the CPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .record import Recorder

NOTE = "CUDA off"
_NOTHING = ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "ipc_collect")


def install(recorder: Recorder) -> None:
    """Patches calls doomed without a GPU; all others stay as they are."""
    if not recorder.on_cpu:
        return
    for name in _NOTHING:
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    torch.cuda.current_device = lambda: 0
    torch.cuda.can_device_access_peer = lambda *_: False
    for place in (torch.Tensor, torch.nn.Module):
        _place_on_cpu(recorder, place)
    pin_memory: Any = lambda self, *args, **kwargs: self  # noqa: E731
    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]
    _replace(recorder, torch, "load", "map_location")
    _replace(recorder, torch, "set_default_device", "device")
    if torch.distributed.is_available():
        _place_ranks(recorder)


def begin(recorder: Recorder) -> None:
    """Makes tensors of CUDA on the CPU, where the script speaks of it."""
    if recorder.on_cpu and _names_cuda():
        OnCpu(recorder).__enter__()  # type: ignore[no-untyped-call]


def is_gpu(device: Any) -> bool:
    """Whether a device is one of CUDA: a name, a torch.device, or a number.

    >>> is_gpu("cuda:1"), is_gpu("cpu"), is_gpu(0), is_gpu(torch.device("cuda"))
    (True, False, True, True)
    """
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return type(device) is int or (isinstance(device, str) and device.partition(":")[0] == "cuda")


class OnCpu(TorchFunctionMode):
    """Makes the tensors of a script on the CPU in the place of CUDA."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and is_gpu(kwargs.get("device")):
            self._recorder.note(NOTE, "off")
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **(kwargs or {}))


def _names_cuda() -> bool:
    """Whether the script speaks of CUDA, or cannot be read: the mode costs each call a little."""
    try:
        with open(sys.argv[0], encoding="utf-8", errors="replace") as file:
            return "cuda" in file.read(1 << 20)
    except (OSError, IndexError):
        return True


def _place_on_cpu(recorder: Recorder, place: Any) -> None:
    """Patches `cuda` and `to` of tensors and modules."""
    to = place.to

    @functools.wraps(to)
    def to_cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and is_gpu(args[0]):
            recorder.note(NOTE, "off")
            args = ("cpu", *args[1:])
        if is_gpu(kwargs.get("device")):
            recorder.note(NOTE, "off")
            kwargs["device"] = "cpu"
        return to(self, *args, **kwargs)

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.note(NOTE, "off")
        return self

    place.to, place.cuda = to_cpu, cuda


def _replace(recorder: Recorder, place: Any, name: str, argument: str) -> None:
    """Replaces CUDA in one argument of a function, its first one where it is not named."""
    call: Callable[..., Any] = getattr(place, name)

    @functools.wraps(call)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        if is_gpu(kwargs.get(argument)):
            recorder.note(NOTE, "off")
            kwargs[argument] = "cpu"
        elif (
            args
            and isinstance(args[0], (str, torch.device))
            and argument != "map_location"
            and is_gpu(args[0])
        ):
            recorder.note(NOTE, "off")
            args = ("cpu", *args[1:])
        return call(*args, **kwargs)

    setattr(place, name, on_cpu)


def _place_ranks(recorder: Recorder) -> None:
    """Has DDP, barriers, averages and meshes of CUDA work over gloo."""
    distributed: Any = torch.distributed
    parallel: Any = torch.nn.parallel
    initialize = parallel.DistributedDataParallel.__init__

    @functools.wraps(initialize)
    def __init__(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        initialize(self, module, None, None, *args, **kwargs)

    parallel.DistributedDataParallel.__init__ = __init__
    barrier, all_reduce = distributed.barrier, distributed.all_reduce

    @functools.wraps(barrier)
    def wait(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return barrier(*args, **kwargs)

    @functools.wraps(all_reduce)
    def reduce(
        tensor: Any, op: Any = distributed.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if op != distributed.ReduceOp.AVG or async_op:
            return all_reduce(tensor, op, group, async_op)
        all_reduce(tensor, distributed.ReduceOp.SUM, group)
        with torch.no_grad():
            tensor.div_(distributed.get_world_size(group))
        return None

    for place in (distributed, distributed.distributed_c10d):
        place.barrier, place.all_reduce = wait, reduce
    for place in (distributed, distributed.device_mesh):
        if hasattr(place, "init_device_mesh"):
            _replace(recorder, place, "init_device_mesh", "device_type")
