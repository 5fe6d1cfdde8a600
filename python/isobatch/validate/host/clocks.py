"""Clocks, power, temperature and what slows a GPU down, sampled by NVML while it works."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from typing import NamedTuple

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host.finding import Finding, Found
from isobatch.validate.host.nvml import Board
from isobatch.validate.report.figures import Clocks

SECONDS = 0.25  # between samples
SLOWED = 0.95  # of the other GPUs' clock
OFTEN = 0.1  # of the samples
REASONS = {
    "HwThermalSlowdown": "too hot (hardware)",
    "HwPowerBrakeSlowdown": "power brake (the supply)",
    "HwSlowdown": "slowed by the hardware",
    "SwThermalSlowdown": "too hot",
}
"""nvmlClocksEventReason*: what a healthy GPU does not have. The power cap is a large GPU's usual state under load, so that it is only
said."""


class Sample(NamedTuple):
    """A GPU at one time. `reasons` are NVML's bits; what it does not tell is None."""

    sm_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    reasons: int
    pcie_generation: int | None


def _reason(board: Board, name: str) -> int:
    """A reason's bit, which older pynvml has by another name."""
    bit = getattr(board.module, f"nvmlClocksEventReason{name}", None)
    return int(bit if bit is not None else getattr(board.module, f"nvmlClocksThrottleReason{name}", 0))


def sample(board: Board) -> Sample:
    """The GPU now."""
    nvml, power = board.module, board.ask("GetPowerUsage")
    reasons = board.ask("GetCurrentClocksEventReasons")
    if reasons is None:
        reasons = board.ask("GetCurrentClocksThrottleReasons")
    return Sample(
        sm_clock_mhz=board.ask("GetClockInfo", nvml.NVML_CLOCK_SM),
        power_w=None if power is None else power / 1e3,
        temperature_c=board.ask("GetTemperature", nvml.NVML_TEMPERATURE_GPU),
        reasons=int(reasons or 0),
        pcie_generation=board.ask("GetCurrPcieLinkGeneration"),
    )


class Sampler:
    """Samples in a thread of its own, from `start` to `stop`."""

    def __init__(self, board: Board) -> None:
        self.board, self.samples = board, list[Sample]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isobatch-clocks", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(SECONDS):
            self.samples.append(sample(self.board))

    def stop(self) -> None:
        """Ends; the samples stay."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def clocks(self, rank: int, since: int = 0, until: int | None = None) -> Clocks:
        """What the samples come to, those in which the GPU had nothing to do left out."""
        return summary(self.board, self.samples[since:until], rank)


def summary(board: Board, samples: Sequence[Sample], rank: int) -> Clocks:
    """The samples of a GPU that was at work."""
    idle, cap = _reason(board, "GpuIdle"), _reason(board, "SwPowerCap")
    busy = [one for one in samples if not one.reasons & idle]

    def share(bit: int) -> float:
        return sum(bool(one.reasons & bit) for one in busy) / len(busy) if busy else 0.0

    slowed = {name: share(_reason(board, name)) for name in REASONS}
    return Clocks(
        rank=rank,
        samples=len(busy),
        sm_clock_mhz=_median([one.sm_clock_mhz for one in busy]),
        power_w=_median([one.power_w for one in busy]),
        temperature_c=max((one.temperature_c for one in busy if one.temperature_c is not None), default=None),
        pcie_generation=max(
            (one.pcie_generation for one in busy if one.pcie_generation is not None), default=None
        ),
        power_capped=share(cap),
        slowed={name: part for name, part in slowed.items() if part},
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def check(own: Clocks, others: Sequence[Clocks], pcie_generation_max: int | None) -> Found:
    """Whether a GPU was slowed down while it worked, or runs at a lower clock than most others."""
    if not own.samples:
        return Found(why_not="NVML gave no sample of a GPU at work")
    findings = [
        Finding(
            f"{REASONS[name]} in {share:.0%} of {own.samples} samples", Cause.GPU_THROTTLED, share > OFTEN
        )
        for name, share in own.slowed.items()
    ]
    clocks = [one.sm_clock_mhz for one in others if one.sm_clock_mhz is not None]
    usual = statistics.median(clocks) if clocks else None
    if own.sm_clock_mhz is not None and usual is not None and own.sm_clock_mhz < SLOWED * usual:
        text = f"{own.sm_clock_mhz:.0f} MHz, where the others' median is {usual:.0f}"
        findings.append(Finding(text, Cause.GPU_THROTTLED))
    generation = own.pcie_generation  # which a GPU lowers while it rests
    if generation is not None and pcie_generation_max is not None and generation < pcie_generation_max:
        text = f"PCIe generation {generation} of {pcie_generation_max} under load"
        findings.append(Finding(text, Cause.GPU_LINK))
    parts = [f"{own.sm_clock_mhz:.0f} MHz" if own.sm_clock_mhz is not None else "clock not told"]
    if own.power_w is not None:
        parts.append(f"{own.power_w:.0f} W")
    parts.append(f"at the power cap in {own.power_capped:.0%} of the samples")
    return Found(findings=tuple(findings), seen=", ".join(parts))
