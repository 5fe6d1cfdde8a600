"""A GPU by NVML, the driver's own library (pynvml of nvidia-ml-py, the extra `gpu`): is it the job's alone, and healthy?

What a GPU or a driver does not support is None, and not an error."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from isobatch.diagnosis.causes import Cause
from isobatch.validate.figures import Gpu
from isobatch.validate.host.system import Action, CheckResult, HostFault

if TYPE_CHECKING:
    from isobatch.validate.ranks.group import Group

INSTALL = "pynvml is not installed: pip install 'isobatch[gpu]'"

MAX_TAKEN_BYTES = 2 << 30
"""Of a GPU's memory at the start, beyond these ranks' own. The driver's reserve is in it where only the older count is there."""

CONTEXT_BYTES = 600 << 20
"""Of each process on a GPU: CUDA's context."""

RECOVERY: dict[int, tuple[str, Action]] = {
    1: ("reset the GPU", "reset"),
    2: ("reboot the host", "reboot"),
    3: ("drain peer-to-peer traffic", "drain"),
    4: ("drain the GPU and reset it", "reset"),
    5: ("recover the IMEX domain", "drain"),
    6: ("reset its bus", "reset"),
    7: ("reboot the host", "reboot"),
}
"""NVML_GPU_RECOVERY_ACTION_*: what the driver asks for."""


class Board:
    """One GPU, as NVML has it. `ask` gives what a function of pynvml answers about it."""

    def __init__(self, module: Any, handle: Any) -> None:
        self.module, self._handle = module, handle

    def ask(self, function: str, *arguments: Any) -> Any:
        """Calls `nvmlDevice<function>`; None where this GPU, driver or user may not know."""
        function_of = getattr(self.module, f"nvmlDevice{function}", None)
        if function_of is None:  # an older pynvml
            return None
        try:
            return function_of(self._handle, *arguments)
        except Exception:  # NVMLError; and of a driver that is older than pynvml one that is none
            return None

    def field(self, name: str) -> Any:
        """Reads a field by the name of its constant, an unsigned integer."""
        number = getattr(self.module, name, None)
        if number is None:
            return None
        values = self.ask("GetFieldValues", [number])
        return None if values is None or values[0].nvmlReturn else values[0].value.uiVal


def open_board(group: Group) -> Board | str:
    """Opens the GPU of this rank; or says why it cannot be asked."""
    if group.device.type != "cuda":
        return "the ranks run on the CPU"
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return INSTALL
    import torch

    return board_at(module, bus_id(torch.cuda.get_device_properties(group.device)))


def board_at(module: Any, bus: str | None) -> Board | str:
    """Opens the GPU at a place of the PCI bus; or says why it cannot be asked."""
    if bus is None:
        return "this torch does not know the GPU's place on the PCI bus"
    try:
        module.nvmlInit()
        return Board(module, module.nvmlDeviceGetHandleByPciBusId(bus.encode()))
    except Exception as error:
        return f"NVML does not answer: {error}"


def visible_boards(module: Any) -> list[Board] | str:
    """Opens the GPUs that CUDA_VISIBLE_DEVICES leaves, without a CUDA context; or says why they cannot be asked."""
    try:
        module.nvmlInit()
        indices = [str(index) for index in range(module.nvmlDeviceGetCount())]
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = indices if chosen is None else [name.strip() for name in chosen.split(",") if name.strip()]
        return [
            Board(
                module,
                module.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdigit()
                else module.nvmlDeviceGetHandleByUUID(name.encode()),
            )
            for name in names
        ]
    except Exception as error:
        return f"NVML does not answer: {error}"


def bus_id(gpu: Any) -> str | None:
    """Writes the place of a GPU on the PCI bus as NVML does; a slice of a divided GPU has the place of the whole.

    >>> from types import SimpleNamespace
    >>> bus_id(SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3b, pci_device_id=0))
    '00000000:3B:00.0'
    """
    if not hasattr(gpu, "pci_bus_id"):
        return None
    return f"{gpu.pci_domain_id:08X}:{gpu.pci_bus_id:02X}:{gpu.pci_device_id:02X}.0"


def state(board: Board, rank: int, own_bytes: int, ranks_here: int) -> Gpu:
    """Asks NVML for the state of a GPU now.

    Args:
        own_bytes: what this process has taken of its memory.
        ranks_here: ranks of this validation on this GPU.
    """
    ask, nvml = board.ask, board.module
    mig, rows, version = ask("GetMigMode"), ask("GetRemappedRows"), getattr(nvml, "nvmlMemory_v2", None)
    memory = (None if version is None else ask("GetMemoryInfo", version)) or ask("GetMemoryInfo")
    processes = ask("GetComputeRunningProcesses")
    up = links(board)
    return Gpu(
        rank=rank,
        name=ask("GetName"),
        serial=ask("GetSerial"),
        memory_bytes=None if memory is None else memory.total,
        taken_bytes=None if memory is None else max(0, memory.used - own_bytes - ranks_here * CONTEXT_BYTES),
        # Inside a container process numbers are others than the driver's: so they are counted, not compared.
        other_processes=None if processes is None else max(0, len(processes) - ranks_here),
        mig=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        ecc_uncorrected=ask(
            "GetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        rows_pending=None if rows is None else bool(rows[2]),
        rows_failed=None if rows is None else bool(rows[3]),
        recovery_action=board.field("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
        pcie_width=ask("GetCurrPcieLinkWidth"),
        pcie_width_max=ask("GetMaxPcieLinkWidth"),
        nvlinks=len(up),
        nvlinks_up=sum(up),
        power_limit_w=_watts(ask("GetEnforcedPowerLimit")),
        power_limit_default_w=_watts(ask("GetPowerManagementDefaultLimit")),
    )


def links(board: Board) -> list[bool]:
    """Lists the GPU's NVLinks by whether they are up."""
    states = (board.ask("GetNvLinkState", link) for link in range(board.module.NVML_NVLINK_MAX_LINKS))
    return [bool(up) for up in takewhile(lambda up: up is not None, states)]  # the GPU has no more of them


def _watts(milliwatts: Any) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def check(gpu: Gpu) -> CheckResult:
    """Checks the state of a GPU before a long job."""
    seen = [f"{gpu.name}, alone" if gpu.other_processes == 0 else str(gpu.name)]
    if gpu.ecc_uncorrected is not None and gpu.rows_pending is not None:
        seen.append("no memory error")
    if gpu.nvlinks:
        seen.append(f"{gpu.nvlinks_up} of {gpu.nvlinks} NVLinks up")
    asked = ("memory_bytes", "other_processes", "mig", "ecc_uncorrected")
    if unknown := [name for name in asked if getattr(gpu, name) is None]:
        seen.append(f"not told: {', '.join(unknown)}")
    return CheckResult(findings=tuple(_faults(gpu)), seen=", ".join(seen))


def _faults(gpu: Gpu) -> Iterator[HostFault]:
    if gpu.other_processes:
        yield HostFault(f"{gpu.other_processes} other processes on the GPU", Cause.GPU_SHARED, True)
    if gpu.taken_bytes is not None and gpu.taken_bytes > MAX_TAKEN_BYTES:
        taken = f"{gpu.taken_bytes / 2**30:.3g} GiB of the GPU are taken by others at the start"
        yield HostFault(taken, Cause.GPU_SHARED, True)
    if gpu.mig:
        yield HostFault("the GPU is divided (MIG)", Cause.GPU_SHARED)
    if gpu.recovery_action:
        text, action = RECOVERY.get(gpu.recovery_action, (f"action {gpu.recovery_action}", "drain"))
        yield HostFault(f"the driver asks for a recovery: {text}", Cause.GPU_ILL, True, action)
    if gpu.rows_failed:
        yield HostFault(
            "rows of its memory could not be remapped: to be replaced", Cause.GPU_ILL, True, "drain"
        )
    if gpu.rows_pending:
        yield HostFault("rows of its memory wait for a reset to be remapped", Cause.GPU_ILL, action="reset")
    if gpu.ecc_uncorrected:
        errors = f"{gpu.ecc_uncorrected} uncorrected memory errors (ECC) since the driver was loaded"
        yield HostFault(errors, Cause.GPU_ILL, action="reset")
    now, usual = gpu.power_limit_w, gpu.power_limit_default_w
    if now is not None and usual is not None and now < 0.95 * usual:
        yield HostFault(f"power is limited to {now:.0f} of {usual:.0f} W", Cause.GPU_THROTTLED)
    width, widest = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and widest is not None and width < widest:
        yield HostFault(f"PCIe has {width} of {widest} lanes", Cause.GPU_LINK, action="drain")
    if 0 < gpu.nvlinks_up < gpu.nvlinks:
        yield HostFault(f"{gpu.nvlinks_up} of {gpu.nvlinks} NVLinks are up", Cause.GPU_LINK, True, "drain")
