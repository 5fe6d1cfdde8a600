"""Data sheets of GPUs: memory, peaks by precision, and the link inside a node."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from isobatch.errors import InputError, unknown


class DataSheet(NamedTuple):
    """A data sheet: peaks in TFLOP/s by precision, bandwidths in GB/s, the link's in one direction."""

    name: str
    title: str
    memory_gb: float
    memory_gb_s: float
    tflops: Mapping[str, float]
    link: str
    link_gb_s: float
    source: str


def _row(
    name: str,
    title: str,
    memory: tuple[float, float],
    peaks: tuple[float, float | None, float | None, float],
    link: tuple[str, float],
    source: str,
) -> DataSheet:
    """`memory` in GB and GB/s; `peaks` of fp16, bf16, tf32 and fp32."""
    known = zip(("fp16", "bf16", "tf32", "fp32"), peaks, strict=True)
    tflops = {precision: peak for precision, peak in known if peak is not None}
    return DataSheet(name, title, *memory, tflops, *link, source)


_ROWS = (
    _row("V100-32", "NVIDIA V100 SXM2", (32, 900), (125, None, None, 15.7), ("NVLink 2", 150),
    "NVIDIA V100 data sheet, January 2020"),
    _row("T4-16", "NVIDIA T4", (16, 320), (65, None, None, 8.1), ("PCIe 3", 16),
    "NVIDIA T4 data sheet, 2019"),
    _row("A10-24", "NVIDIA A10", (24, 600), (125, 125, 62.5, 31.2), ("PCIe 4", 32),
    "NVIDIA A10 data sheet, 2021"),
    _row("A100-40", "NVIDIA A100 SXM4, 40 GB", (40, 1555), (312, 312, 156, 19.5), ("NVLink 3", 300),
    "NVIDIA A100 data sheet, 2021"),
    _row("A100-80", "NVIDIA A100 SXM4, 80 GB", (80, 2039), (312, 312, 156, 19.5), ("NVLink 3", 300),
    "NVIDIA A100 data sheet, 2021"),
    _row("L4-24", "NVIDIA L4", (24, 300), (121, 121, 60, 30.3), ("PCIe 4", 32), "NVIDIA L4 data sheet, 2023"),
    _row("L40S-48", "NVIDIA L40S", (48, 864), (362, 362, 183, 91.6), ("PCIe 4", 32),
    "NVIDIA L40S data sheet, 2023"),
    _row("H100-PCIe-80", "NVIDIA H100 PCIe", (80, 2000), (756, 756, 378, 51), ("PCIe 5", 64),
    "NVIDIA H100 data sheet, 2022"),
    _row("H100-80", "NVIDIA H100 SXM5", (80, 3350), (989, 989, 494.5, 67), ("NVLink 4", 450),
    "NVIDIA H100 data sheet, 2023"),
    _row("H200-141", "NVIDIA H200 SXM", (141, 4800), (989, 989, 494.5, 67), ("NVLink 4", 450),
    "NVIDIA H200 data sheet, 2023"),
    _row("B200-180", "NVIDIA B200, HGX", (180, 8000), (2250, 2250, 1100, 80), ("NVLink 5", 900),
    "NVIDIA Blackwell architecture brief and HGX B200 data sheet, 2024"),
    _row("MI300X-192", "AMD Instinct MI300X", (192, 5300), (1307, 1307, 653.7, 163.4), ("Infinity Fabric",
    448), "AMD Instinct MI300X data sheet, 2023"),
)  # fmt: skip

SHEETS: dict[str, DataSheet] = {row.name: row for row in _ROWS}


def sheet_of(gpu: str) -> DataSheet:
    """Returns the data sheet of a GPU by its name, in any case."""
    for name, sheet in SHEETS.items():
        if name.lower() == str(gpu).lower():
            return sheet
    raise unknown("gpu", gpu, SHEETS, field="gpu")


def peak_of(sheet: DataSheet, precision: str) -> float:
    """Returns the dense peak in TFLOP/s; an error where the GPU has no units for the precision."""
    if precision not in sheet.tflops:
        raise InputError(
            f"{sheet.name} has no peak for precision {precision!r} in its data sheet: use one of "
            f"{', '.join(sheet.tflops)}",
            field="precision",
        )
    return sheet.tflops[precision]


def memory_gib_of(gpu: str | None) -> float | None:
    """Returns the memory of a GPU in GiB, by the name of a data sheet or a driver; None if not known.

    >>> round(memory_gib_of("H100-80"), 1), round(memory_gib_of("NVIDIA A100-SXM4-40GB"), 1)
    (74.5, 37.3)
    >>> memory_gib_of("NVIDIA A100"), memory_gib_of("my GPU")  # there are two A100
    (None, None)
    """
    names = re.split(r"[\s-]+", (gpu or "").upper())
    sizes = {float(size[1]) for name in names if (size := re.fullmatch(r"(\d+)(?:GB)?", name))}
    memories = {sheet.memory_gb for name, sheet in SHEETS.items() if name.upper().partition("-")[0] in names}
    matches = memories & sizes if sizes else memories
    return next(iter(matches)) * 1e9 / 2**30 if len(matches) == 1 else None
