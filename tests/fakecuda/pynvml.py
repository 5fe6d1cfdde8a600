"""NVIDIA's driver library by its module's name: healthy H100s with the processes of the simulated CUDA."""

import os
from types import SimpleNamespace

import contexts

from composed.nvml import Nvml, NVMLError

FIRST_BUS = 0x3B
COUNT = int(os.environ["FAKE_GPUS"])


class Driver(Nvml):
    """The GPUs of this host, each by its index."""

    nvmlMemory_v2 = 0x2000028
    handles = range(COUNT)

    def nvmlSystemGetDriverVersion(self):
        return "580.159.04"

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= COUNT:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        return int(bytes(bus).decode().split(":")[1], 16) - FIRST_BUS

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [SimpleNamespace(pid=pid, usedGpuMemory=count) for pid, count in contexts.read(gpu).items()]

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        total, in_use = contexts.total_bytes(), sum(contexts.read(gpu).values())
        used = in_use + (contexts.DRIVER_BYTES if version is None else 0)  # the second version has it apart
        return SimpleNamespace(total=total, used=used, reserved=contexts.DRIVER_BYTES, free=total - used)


_driver = Driver(PowerUsage=640_000, MaxClockInfo=1980, ClockInfo=1755)


def __getattr__(name):
    return getattr(_driver, name)
