"""The state of a network besides its parameters, as it was before a step: training modes, buffers and
hooks.
"""

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class Surroundings:
    """Notes the state besides the parameters at each step, and puts it back if the step is lost: a loss may
    interrupt an evaluation, or a forward that updated the statistics of batch norms."""

    def __init__(self) -> None:
        self._modules: dict[str, nn.Module] = {}
        self._modes: list[bool] = []
        self._first_hook = 0
        # The tensor of each buffer, its version, and a copy of its values at that version.
        self._buffers: dict[tuple[nn.Module, str], tuple[torch.Tensor, int, torch.Tensor]] = {}

    def enter(self, net: nn.Module) -> None:
        """Begins to watch a network in a new crew; its modules get the modes noted last."""
        modes = dict(zip(self._modules, self._modes, strict=True))
        self._modules = dict(net.named_modules())
        for name, module in self._modules.items():
            module.training = modes.get(name, module.training)
        self._buffers = {
            (module, name): (buffer, _UNKNOWN, buffer)
            for module in self._modules.values()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        self.note()

    def note(self) -> None:
        """Notes the state. Buffers that did not change are not copied again."""
        self._modes = [module.training for module in self._modules.values()]
        self._first_hook = RemovableHandle.next_id
        for (module, name), (noted, version, copy) in self._buffers.items():
            buffer = module._buffers.get(name)
            if buffer is None or (buffer is noted and _version(buffer) == version):
                continue
            if version == _UNKNOWN or (copy.shape, copy.dtype) != (buffer.shape, buffer.dtype):
                copy = buffer.detach().clone()
            else:  # Batch norms write theirs in each step: its memory is used again.
                copy.copy_(buffer.detach())
            self._buffers[module, name] = buffer, _version(buffer), copy

    def restore_hooks(self) -> None:
        """Removes hooks registered since `note`."""
        for module in self._modules.values():
            for name, hooks in vars(module).items():
                if "hooks" in name and isinstance(hooks, dict):
                    for number in [key for key in hooks if isinstance(key, int) and key >= self._first_hook]:
                        del hooks[number]

    def restore_buffers(self) -> None:
        """Puts back the buffers' values."""
        with torch.no_grad():
            for (module, name), (buffer, version, copy) in self._buffers.items():
                if not (module._buffers.get(name) is buffer and _version(buffer) == version):
                    module._buffers[name] = buffer
                    buffer.copy_(copy)


_UNKNOWN, _INFERENCE = -1, -2
"""Versions of a buffer that was not copied yet, and of an inference tensor, of which torch counts none."""


def _version(tensor: torch.Tensor) -> int:
    return _INFERENCE if tensor.is_inference() else tensor._version
