"""The driver's own library, NVML, by NVIDIA's module pynvml (of nvidia-ml-py, the extra `gpu`), which also works where nvidia-smi is not
installed. What a GPU or a driver does not support is None, and not an error."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from isobatch.validate.ranks.group import Group

INSTALL = "pynvml is not installed: pip install 'isobatch[gpu]'"


class Board:
    """One GPU, as NVML has it. `ask` gives what a function of pynvml answers about it."""

    def __init__(self, module: Any, handle: Any) -> None:
        self.module, self._handle = module, handle

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of `nvmlDevice<function>`; None where this GPU, driver or user may not know."""
        asked = getattr(self.module, f"nvmlDevice{function}", None)
        if asked is None:  # an older pynvml
            return None
        return self._tried(lambda: asked(self._handle, *arguments))

    def field(self, name: str) -> Any:
        """The value of a field by the name of its constant, an unsigned integer."""
        number = getattr(self.module, name, None)
        if number is None:
            return None
        values = self.ask("GetFieldValues", [number])
        return None if values is None or values[0].nvmlReturn else values[0].value.uiVal

    def _tried(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self.module.NVMLError:
            return None


def open_board(group: Group) -> Board | str:
    """The GPU of this rank; or why it cannot be asked."""
    if group.device.type != "cuda":
        return "the ranks run on the CPU"
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return INSTALL
    return board_at(module, bus_id(torch.cuda.get_device_properties(group.device)))


def board_at(module: Any, bus: str | None) -> Board | str:
    """The GPU at a place of the PCI bus; or why it cannot be asked."""
    if bus is None:
        return "this torch does not know the GPU's place on the PCI bus"
    try:
        module.nvmlInit()
        return Board(module, module.nvmlDeviceGetHandleByPciBusId(bus.encode()))
    except module.NVMLError as error:
        return f"NVML does not answer: {error}"


def bus_id(gpu: Any) -> str | None:
    """The place of a GPU on the PCI bus, as NVML writes it; a slice of a divided GPU has the place of the whole.

    >>> from types import SimpleNamespace
    >>> bus_id(SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3b, pci_device_id=0))
    '00000000:3B:00.0'
    """
    if not hasattr(gpu, "pci_bus_id"):
        return None
    return f"{gpu.pci_domain_id:08X}:{gpu.pci_bus_id:02X}:{gpu.pci_device_id:02X}.0"
