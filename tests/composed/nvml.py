"""A composed pynvml: the functions and constants of NVIDIA's module (nvidia-ml-py 13), with answers that are
made up here. No GPU was asked: it says that our code asks the right functions and judges what they answer,
not what a GPU answers.
"""

from types import SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml raises it."""


class Nvml:
    """A healthy H100 without other processes, but for the given values. `lacks` names functions that this
    driver refuses.
    """

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = None
    handles = ("handle",)

    def __init__(self, lacks=(), **values):
        self.lacks, self.asked = lacks, []
        self.answers = {
            "Name": "NVIDIA H100 80GB HBM3",
            "MemoryInfo": SimpleNamespace(total=80 * GIB, used=GIB // 2, free=80 * GIB - GIB // 2),
            "MigMode": [0, 0],
            "ComputeRunningProcesses": [SimpleNamespace(pid=4242, usedGpuMemory=GIB // 2)],
            "EnforcedPowerLimit": 700_000,
            "PowerManagementDefaultLimit": 700_000,
        } | values

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        self.asked.append(bus)
        return "handle"

    nvmlDeviceGetHandleByIndex = nvmlDeviceGetHandleByPciBusId

    def __getattr__(self, name):
        figure = name.removeprefix("nvmlDeviceGet")
        if figure == name or figure not in self.answers:
            raise AttributeError(name)

        def answer(handle, *arguments):
            assert handle in self.handles
            if figure in self.lacks:
                raise NVMLError("Not Supported")
            return self.answers[figure]

        return answer
