"""The options of a validation, from a command line or a call."""

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from isobatch.errors import InputError, must_be, raise_all

Extent = Literal["quick", "usual", "full"]
Device = Literal["auto", "cpu", "cuda"]
Hook = Literal["none", "fp16", "bf16"]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to validate.

    Args:
        extent: "quick" proves function in seconds and times little, "usual", or "full", with double
            precision, more sizes and all number formats.
        workload: "mlp", the built-in perceptron, or "package.module:factory".
        parameters: about how many the built-in workload has.
        device: "auto", "cpu" or "cuda".
        compile, channels_last: torch.compile around the DDP model; the convolutions' memory format.
        hook: "none", "fp16" or "bf16": compresses gradients on the wire.
        noise_steps: steps over which the gradient noise scale is measured; 0 measures none.
        bus_gb_s: the all-reduce bus bandwidth to be expected, GB/s.
        step_seconds, memory_gib: what a forecast says of a step and of the peak memory.
        find_micro_batch: search for the largest micro-batch that fits; on a CPU this needs a memory limit.
        memory_limit_gib: the memory that a rank may take: on a GPU what its allocator reserves, on a CPU the
            process's.
        caution, fail: how far a measured figure may be off, as a fraction.
        phase_seconds: the time limit of each phase.

    Raises:
        InputError: values are out of range; all of them are listed.
    """

    extent: Extent = "usual"
    workload: str = "mlp"
    parameters: int = 1_000_000
    device: Device = "auto"
    compile: bool = False
    channels_last: bool = False
    hook: Hook = "none"
    noise_steps: int = 8
    bus_gb_s: float | None = None
    step_seconds: float | None = None
    memory_gib: float | None = None
    find_micro_batch: bool = False
    memory_limit_gib: float | None = None
    caution: float = 0.10
    fail: float = 0.25
    phase_seconds: float = 60.0

    def __post_init__(self) -> None:
        raise_all(self._faults())

    def _faults(self) -> Iterator[InputError]:
        for name, kind in (("extent", Extent), ("device", Device), ("hook", Hook)):
            values = get_args(kind)
            if getattr(self, name) not in values:
                yield must_be(f"{', '.join(values[:-1])} or {values[-1]}", getattr(self, name), field=name)
        expected = "bus_gb_s", "step_seconds", "memory_gib"
        for name in ("parameters", "caution", "fail", "phase_seconds", *expected, "memory_limit_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                yield must_be("a number above 0", value, field=name)
        if self.noise_steps < 0 or self.noise_steps == 1:
            yield must_be("0, or at least 2", self.noise_steps, field="noise_steps")
        if self.caution > self.fail:
            yield must_be(f"at most fail, {self.fail!r}", self.caution, field="caution")
