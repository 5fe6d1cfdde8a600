"""The state of a network besides its parameters, as it was before a step: training modes, buffers and
hooks.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class _Buffer(NamedTuple):
    """A buffer of a module, with a copy of its values at a version."""

    module: nn.Module
    name: str
    tensor: torch.Tensor
    version: int
    copy: torch.Tensor

    @property
    def is_unchanged(self) -> bool:
        current = self.module._buffers.get(self.name)
        return current is self.tensor and _version(current) == self.version


class Surroundings:
    """Notes the state besides the parameters at each step, and puts it back if the step is lost: a loss may
    interrupt an evaluation, or a forward that updated the statistics of batch norms."""

    def __init__(self) -> None:
        self._modules: list[nn.Module] = []
        self._names: list[str] = []
        self._modes: list[bool] = []
        self._buffers: list[_Buffer] = []
        self._first_hook = 0

    def enter(self, net: nn.Module) -> None:
        """Begins to watch a network in a new crew; its modules get the modes noted last."""
        modes = dict(zip(self._names, self._modes, strict=True))
        named = dict(net.named_modules())
        self._names, self._modules = [*named], [*named.values()]
        for name, module in named.items():
            module.training = modes.get(name, module.training)
        self._buffers = [
            _Buffer(module, name, buffer, _version(buffer), buffer.detach().clone())
            for module in self._modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.note()

    def note(self) -> None:
        """Notes the state. Buffers that did not change are not copied again."""
        self._modes = [module.training for module in self._modules]
        self._first_hook = RemovableHandle.next_id
        self._buffers = [buffer if buffer.is_unchanged else _noted(buffer) for buffer in self._buffers]

    def restore_hooks(self) -> None:
        """Removes hooks registered since `note`."""
        for module in self._modules:
            for name, hooks in vars(module).items():
                if "hooks" in name and isinstance(hooks, dict):
                    for number in [key for key in hooks if isinstance(key, int) and key >= self._first_hook]:
                        del hooks[number]

    def restore_buffers(self) -> None:
        """Puts back the buffers' values."""
        with torch.no_grad():
            for buffer in self._buffers:
                if not buffer.is_unchanged:
                    buffer.module._buffers[buffer.name] = buffer.tensor
                    buffer.tensor.copy_(buffer.copy)


def _noted(buffer: _Buffer) -> _Buffer:
    tensor: Any = buffer.module._buffers.get(buffer.name)
    if tensor is None:
        return buffer
    if tensor.shape == buffer.copy.shape and tensor.dtype == buffer.copy.dtype:
        copy = buffer.copy.copy_(tensor.detach())
    else:
        copy = tensor.detach().clone()
    return buffer._replace(tensor=tensor, version=_version(tensor), copy=copy)


def _version(tensor: torch.Tensor | None) -> int:
    """Returns how often a tensor was written; −1, equal to no version, if torch does not count it."""
    if tensor is None or tensor.is_inference():
        return -1
    return tensor._version
