"""A composed pynvml: the functions and constants of NVIDIA's module (nvidia-ml-py 13), with answers that are made up here. No GPU was asked:
it says that our code asks the right functions and judges what they answer, not what a GPU answers."""

from types import SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml raises it."""


class Nvml:
    """An H100 that is healthy and alone, but for what is given. `lacks` names functions that this driver refuses."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_NVLINK_MAX_LINKS = 36
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = None
    handles = ("handle",)

    def __init__(self, lacks=(), **given):
        self.lacks, self.asked = lacks, []
        self.answers = {
            "Name": "NVIDIA H100 80GB HBM3",
            "Serial": "1650123456789",
            "MemoryInfo": SimpleNamespace(total=80 * GIB, used=GIB // 2, free=80 * GIB - GIB // 2),
            "MigMode": [0, 0],
            "RemappedRows": (0, 0, 0, 0),
            "ComputeRunningProcesses": [SimpleNamespace(pid=4242, usedGpuMemory=GIB // 2)],
            "TotalEccErrors": 0,
            "CurrPcieLinkWidth": 16,
            "MaxPcieLinkWidth": 16,
            "EnforcedPowerLimit": 700_000,
            "PowerManagementDefaultLimit": 700_000,
            "recovery": 0,
            "links": [1] * 18,
        } | given

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return self.answers.get("count", 1)

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        self.asked.append(bus)
        return "handle"

    nvmlDeviceGetHandleByIndex = nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByPciBusId

    def nvmlDeviceGetFieldValues(self, handle, numbers):
        assert numbers == [230]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.answers["recovery"]))]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= len(self.answers["links"]):
            raise NVMLError("Invalid Argument")
        return self.answers["links"][link]

    def __getattr__(self, name):
        what = name.removeprefix("nvmlDeviceGet")
        if what == name or what not in self.answers:
            raise AttributeError(name)

        def answer(handle, *arguments):
            assert handle in self.handles
            if what in self.lacks:
                raise NVMLError("Not Supported")
            return self.answers[what]

        return answer
