"""Whether a GPU is this job's alone, and healthy: by NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host.finding import Finding, Found
from isobatch.validate.host.nvml import Board
from isobatch.validate.report.figures import Gpu

TAKEN_BYTES = 2 << 30
"""Of a GPU's memory at the start, beyond this process's own: CUDA's context takes some 0.5 GiB of each process."""

RECOVERY = {
    1: "reset the GPU",
    2: "reboot the host",
    3: "drain peer-to-peer traffic",
    4: "drain the GPU and reset it",
    5: "recover the IMEX domain",
    6: "reset its bus",
    7: "reboot the host",
}
"""NVML_GPU_RECOVERY_ACTION_*: what the driver asks for."""


def state(board: Board, rank: int, own_bytes: int, ranks_here: int) -> Gpu:
    """What NVML says of a GPU now.

    Args:
        own_bytes: what this process has taken of its memory.
        ranks_here: ranks of this validation on this GPU.
    """
    ask, nvml = board.ask, board.module
    memory, mig, rows = ask("GetMemoryInfo"), ask("GetMigMode"), ask("GetRemappedRows")
    processes = ask("GetComputeRunningProcesses")
    up = links(board)
    return Gpu(
        rank=rank,
        name=ask("GetName"),
        serial=ask("GetSerial"),
        memory_bytes=None if memory is None else memory.total,
        taken_bytes=None if memory is None else max(0, memory.used - own_bytes),
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
        pcie_generation_max=ask("GetMaxPcieLinkGeneration"),
        nvlinks=len(up),
        nvlinks_up=sum(up),
        power_limit_w=_watts(ask("GetEnforcedPowerLimit")),
        power_limit_default_w=_watts(ask("GetPowerManagementDefaultLimit")),
        sm_clock_max_mhz=ask("GetMaxClockInfo", nvml.NVML_CLOCK_SM),
    )


def links(board: Board) -> list[bool]:
    """Of each NVLink that the GPU has, whether it is up."""
    found = []
    for link in range(board.module.NVML_NVLINK_MAX_LINKS):
        up = board.ask("GetNvLinkState", link)
        if up is None:  # the GPU has no more of them
            break
        found.append(bool(up))
    return found


def _watts(milliwatts: Any) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def check(gpu: Gpu) -> Found:
    """Whether that is the state of a GPU to begin a long job on."""
    seen = [f"{gpu.name}, alone" if gpu.other_processes == 0 else str(gpu.name)]
    if gpu.ecc_uncorrected is not None and gpu.rows_pending is not None:
        seen.append("no memory error")
    if gpu.nvlinks:
        seen.append(f"{gpu.nvlinks_up} of {gpu.nvlinks} NVLinks up")
    unknown = [
        name
        for name in ("memory_bytes", "other_processes", "mig", "ecc_uncorrected")
        if getattr(gpu, name) is None
    ]
    if unknown:
        seen.append(f"not told: {', '.join(unknown)}")
    return Found(findings=(*_shared(gpu), *_ill(gpu), *_narrow(gpu)), seen=", ".join(seen))


def _shared(gpu: Gpu) -> Iterator[Finding]:
    if gpu.other_processes:
        yield Finding(f"{gpu.other_processes} other processes on the GPU", Cause.GPU_SHARED, True)
    if gpu.taken_bytes is not None and gpu.taken_bytes > TAKEN_BYTES:
        yield Finding(
            f"{gpu.taken_bytes / 2**30:.3g} GiB of the GPU are taken by others at the start",
            Cause.GPU_SHARED,
            True,
        )
    if gpu.mig:
        yield Finding("the GPU is divided (MIG)", Cause.GPU_SHARED)


def _ill(gpu: Gpu) -> Iterator[Finding]:
    if gpu.recovery_action:
        action = RECOVERY.get(gpu.recovery_action, f"action {gpu.recovery_action}")
        yield Finding(f"the driver asks for a recovery: {action}", Cause.GPU_ILL, True)
    if gpu.rows_failed:
        yield Finding("rows of its memory could not be remapped: to be replaced", Cause.GPU_ILL, True)
    if gpu.rows_pending:
        yield Finding("rows of its memory wait for a reset to be remapped", Cause.GPU_ILL)
    if gpu.ecc_uncorrected:
        yield Finding(
            f"{gpu.ecc_uncorrected} uncorrected memory errors (ECC) since the driver was loaded",
            Cause.GPU_ILL,
        )
    with contextlib.suppress(TypeError):  # one of the two is not known
        if gpu.power_limit_w < 0.95 * gpu.power_limit_default_w:  # type: ignore[operator]
            text = f"power is limited to {gpu.power_limit_w:.0f} of {gpu.power_limit_default_w:.0f} W"
            yield Finding(text, Cause.GPU_THROTTLED)


def _narrow(gpu: Gpu) -> Iterator[Finding]:
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and most is not None and width < most:
        yield Finding(f"PCIe has {width} of {most} lanes", Cause.GPU_LINK)
    if 0 < gpu.nvlinks_up < gpu.nvlinks:
        yield Finding(f"{gpu.nvlinks_up} of {gpu.nvlinks} NVLinks are up", Cause.GPU_LINK, True)
