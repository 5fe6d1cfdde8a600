"""NVIDIA's driver library under its real names (nvidia-ml-py): healthy H100s, whose processes are those of the made-up CUDA. $FAKE_NVML
names functions that this driver has not."""

import os
from types import SimpleNamespace

import contexts


class NVMLError(Exception):
    """As pynvml raises it."""


class NVMLLibraryMismatchError(Exception):
    """What pynvml raises where the driver is older than a function: no NVMLError."""


NVML_DEVICE_MIG_ENABLE = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = nvmlClocksEventReasonGpuIdle = NVML_CLOCK_SM = 1
NVML_VOLATILE_ECC = NVML_TEMPERATURE_GPU = 0
NVML_NVLINK_MAX_LINKS = 36
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
nvmlMemory_v2 = 0x2000028
nvmlClocksEventReasonSwPowerCap, nvmlClocksEventReasonHwSlowdown = 4, 8
nvmlClocksEventReasonSwThermalSlowdown, nvmlClocksEventReasonHwThermalSlowdown = 32, 64
nvmlClocksEventReasonHwPowerBrakeSlowdown = 128
FIRST_BUS = 0x3B
NVLINKS = 18


def nvmlInit():
    pass


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.159.04"


def nvmlDeviceGetCount():
    return int(os.environ["FAKE_GPUS"])


def nvmlDeviceGetHandleByIndex(index):
    if index >= nvmlDeviceGetCount():
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetHandleByPciBusId(bus):
    return int(bytes(bus).decode().split(":")[1], 16) - FIRST_BUS


def nvmlDeviceGetPciInfo(gpu):
    bus = f"00000000:{FIRST_BUS + gpu:02X}:00.0"
    return SimpleNamespace(busId=bus, domain=0, bus=FIRST_BUS + gpu, device=0)


def nvmlDeviceGetUUID(gpu):
    return f"GPU-{gpu}"


def nvmlDeviceGetComputeRunningProcesses(gpu):
    return [SimpleNamespace(pid=pid, usedGpuMemory=taken) for pid, taken in contexts.read(gpu).items()]


def nvmlDeviceGetMemoryInfo(gpu, version=None):
    total, taken = contexts.total_bytes(), sum(contexts.read(gpu).values())
    used = taken + (contexts.DRIVER_BYTES if version is None else 0)  # the second version has it apart
    return SimpleNamespace(total=total, used=used, reserved=contexts.DRIVER_BYTES, free=total - used)


def nvmlDeviceGetFieldValues(gpu, numbers):
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0)) for _ in numbers]


def nvmlDeviceGetNvLinkState(gpu, link):
    if link >= NVLINKS:
        raise NVMLError("Invalid Argument")
    return int(int(os.environ["FAKE_GPUS"]) > 1)


def _always(answer):
    return lambda *_: answer


for _name, _answer in {
    "Name": "NVIDIA H100 80GB HBM3",
    "Serial": "1650123456789",
    "MigMode": [0, 0],
    "RemappedRows": (0, 0, 0, 0),
    "TotalEccErrors": 0,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "CurrPcieLinkGeneration": 5,
    "MaxPcieLinkGeneration": 5,
    "EnforcedPowerLimit": 700_000,
    "PowerManagementDefaultLimit": 700_000,
    "PowerUsage": 640_000,
    "MaxClockInfo": 1980,
    "ClockInfo": 1755,
    "Temperature": 61,
    "CurrentClocksEventReasons": 0,
}.items():
    globals()[f"nvmlDeviceGet{_name}"] = _always(_answer)


def _older(*_):
    raise NVMLLibraryMismatchError(
        "Unversioned function called and the pyNVML version does not match the NVML lib version"
    )


for _name in filter(None, os.environ.get("FAKE_NVML", "").split(",")):
    globals()[f"nvmlDeviceGet{_name}"] = _older
