"""Checks each rank's GPU: the job's alone, and free to run at full clocks.

It asks NVML, the driver's own library (pynvml of nvidia-ml-py, the extra `gpu`). A GPU's health is left to
the tools of its vendor.
"""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from isobatch.equivalence.laws import Cause
from isobatch.validate.figures import Gpu
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.trial import Claim, Trial
from isobatch.words import few

MAX_TAKEN_BYTES = 2 << 30  # of a GPU, beside these ranks' own; an older driver counts its reserve, too
CONTEXT_BYTES = 600 << 20  # CUDA's context of a process
FULL_POWER = 0.95  # the share of the default power limit below which clocks fall under load


def open_gpu(group: Group) -> tuple[Any, Any] | str:
    """Opens this rank's GPU, as pynvml and a handle; or returns the reason for failing."""
    if group.device.type != "cuda":
        return "the ranks run on the CPU"
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return "pynvml is not installed: pip install '.[gpu]'"
    gpu: Any = torch.cuda.get_device_properties(group.device)
    if not hasattr(gpu, "pci_bus_id"):
        return "this torch does not know the GPU's place on the PCI bus"
    place = f"{gpu.pci_domain_id:08X}:{gpu.pci_bus_id:02X}:{gpu.pci_device_id:02X}.0"
    try:
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByPciBusId(place.encode())
    except Exception as error:
        return f"NVML does not answer: {error}"


def read_gpu(nvml: Any, handle: Any, rank: int = 0, own_bytes: int = 0, ranks_here: int = 0) -> Gpu:
    """Reads a GPU's state; `own_bytes` are this process's, `ranks_here` this validation's ranks on it."""

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, f"nvmlDeviceGet{function}")(handle, *arguments)
        except Exception:  # an older pynvml lacks the function; an older driver raises other errors
            return None

    mig, processes = ask("MigMode"), ask("ComputeRunningProcesses")
    memory = ask("MemoryInfo", getattr(nvml, "nvmlMemory_v2", None)) or ask("MemoryInfo")
    limits = (ask("EnforcedPowerLimit"), ask("PowerManagementDefaultLimit"))  # milliwatts
    now, usual = (None if limit is None else limit / 1e3 for limit in limits)
    return Gpu(
        rank=rank,
        name=ask("Name"),
        memory_bytes=None if memory is None else memory.total,
        taken_bytes=None if memory is None else max(0, memory.used - own_bytes - ranks_here * CONTEXT_BYTES),
        # A container numbers its processes otherwise than the driver: they are counted, not compared.
        other_processes=None if processes is None else max(0, len(processes) - ranks_here),
        mig=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        power_limit_w=now,
        power_limit_default_w=usual,
    )


def find_faults(gpu: Gpu) -> Iterator[tuple[Verdict, Cause, str]]:
    """Finds a GPU's faults in the way of a measurement."""
    if gpu.other_processes:
        yield Verdict.FAIL, Cause.GPU_SHARED, f"{gpu.other_processes} other processes on the GPU"
    if gpu.taken_bytes is not None and gpu.taken_bytes > MAX_TAKEN_BYTES:
        text = f"{gpu.taken_bytes / 2**30:.3g} GiB of the GPU are taken by others at the start"
        yield Verdict.FAIL, Cause.GPU_SHARED, text
    if gpu.mig:
        yield Verdict.CAUTION, Cause.GPU_SHARED, "the GPU is divided (MIG)"
    now, usual = gpu.power_limit_w, gpu.power_limit_default_w
    if now is not None and usual is not None and now < FULL_POWER * usual:
        yield Verdict.CAUTION, Cause.GPU_THROTTLED, f"power is limited to {now:.0f} of {usual:.0f} W"


def judge_gpus(group: Group, answers: Sequence[Gpu | str]) -> Proof:
    """Judges the GPUs of all ranks, each by its state, or by the reason for having none."""
    gpus = {answer.rank: answer for answer in answers if isinstance(answer, Gpu)}
    reasons = "; ".join(dict.fromkeys(answer for answer in answers if isinstance(answer, str)))
    if not gpus:
        return skip_claim("gpu", reasons)
    left_out = f"; {len(answers) - len(gpus)} of {len(answers)} not asked: {reasons}" if reasons else ""
    bad = [(rank, *fault) for rank, gpu in gpus.items() for fault in find_faults(gpu)]
    if not bad:
        names = dict.fromkeys(str(gpu.name) for gpu in gpus.values())
        return pass_claim("gpu", f"{few(list(names))}, alone{left_out}")
    where = [f"host {entry.host} GPU {entry.local_rank} (rank {entry.rank})" for entry in group.roster]
    verdict = Verdict.of([fault[1] for fault in bad])
    bad.sort(key=lambda fault: fault[1] is not verdict)
    text = few([f"{where[rank]}: {state}" for rank, _, _, state in bad])
    named = few(list(dict.fromkeys(where[rank] for rank, judged, _, _ in bad if judged is verdict)))
    return judge_claim("gpu", verdict, text + left_out, bad[0][2].likely(named))


def prove(trial: Trial) -> list[Proof]:
    """Asks each rank for its GPU."""
    group, answer = trial.group, open_gpu(trial.group)
    state: Gpu | str
    if isinstance(answer, str):
        state = answer
    else:
        torch.zeros(1, device=group.device)  # from now on NVML counts this process, too
        own = group.facts[group.rank]
        sharing = sum((facts.machine, facts.bus) == (own.machine, own.bus) for facts in group.facts)
        state = read_gpu(*answer, group.rank, int(torch.cuda.memory_reserved(group.device)), sharing)
    answers: list[Gpu | str] = group.gather(state, Gpu | str)
    trial.draft.add(gpus=[answer for answer in answers if isinstance(answer, Gpu)])
    return [judge_gpus(group, answers)]


CLAIM = Claim(phase="gpu", names=("gpu",), prove=prove, connected=False)
