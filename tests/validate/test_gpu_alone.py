"""Whether GPUs are the job's alone and at full power, by composed answers of NVML (tests/composed).

No GPU was asked.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from composed.nvml import GIB, Nvml
from isobatch.equivalence.laws import Cause
from isobatch.validate import Verdict
from isobatch.validate.proofs import gpu

ROSTER = [SimpleNamespace(host=f"n{rank // 8}", local_rank=rank % 8, rank=rank) for rank in range(16)]
NODES = SimpleNamespace(roster=ROSTER)


def state(nvml=None, rank=0, ranks_here=1):
    return gpu.read_gpu(nvml or Nvml(), "handle", rank, 0, ranks_here)


def test_a_healthy_gpu_is_alone():
    answer = state()
    assert (answer.name, answer.mig) == ("NVIDIA H100 80GB HBM3", False)
    assert (answer.power_limit_w, answer.other_processes) == (700.0, 0)
    proof = gpu.judge_gpus(NODES, [state(rank=rank) for rank in range(16)])
    assert (proof.verdict, proof.text) == (Verdict.PASS, "NVIDIA H100 80GB HBM3, alone")


def test_contexts_of_the_jobs_own_ranks_are_not_others():
    used = SimpleNamespace(total=80 << 30, used=5 << 30, free=75 << 30)  # 8 contexts and the driver's reserve
    shared = Nvml(MemoryInfo=used, ComputeRunningProcesses=[None] * 8)
    assert not [*gpu.find_faults(state(shared, ranks_here=8))]
    assert len([*gpu.find_faults(state(Nvml(MemoryInfo=used)))]) == 1


@pytest.mark.parametrize(
    ("faulty", "text", "cause", "verdict"),
    [
        (
            {"ComputeRunningProcesses": [SimpleNamespace(pid=1)] * 3},
            "2 other processes",
            Cause.GPU_SHARED,
            "fail",
        ),
        (
            {"MemoryInfo": SimpleNamespace(total=80 * GIB, used=9 * GIB, free=71 * GIB)},
            "8.41 GiB of the GPU are taken",
            Cause.GPU_SHARED,
            "fail",
        ),
        ({"MigMode": [1, 1]}, "divided (MIG)", Cause.GPU_SHARED, "caution"),
        ({"EnforcedPowerLimit": 500_000}, "500 of 700 W", Cause.GPU_THROTTLED, "caution"),
    ],
)
def test_disturbances_of_a_measurement_are_named_with_their_gpu(faulty, text, cause, verdict):
    answers = [state(Nvml(**faulty) if rank == 11 else None, rank) for rank in range(16)]
    proof = gpu.judge_gpus(NODES, answers)
    assert text in proof.text and "host n1 GPU 3 (rank 11)" in proof.diagnosis.text
    assert (proof.cause, proof.verdict) == (cause, verdict)


def test_the_worst_of_several_faults_is_the_cause():
    answers = [state(Nvml(MigMode=[1, 1])), state(Nvml(ComputeRunningProcesses=[None] * 2), 1)]
    proof = gpu.judge_gpus(NODES, answers)
    assert proof.verdict == "fail" and proof.diagnosis.text.endswith("(host n0 GPU 1 (rank 1))")
    assert proof.text.index("rank 1") < proof.text.index("rank 0") and "MIG" in proof.text


def test_unknown_states_of_a_gpu_are_no_fault():
    lacks = ("MigMode", "ComputeRunningProcesses", "EnforcedPowerLimit", "MemoryInfo")
    answer = state(Nvml(lacks=lacks))
    assert [answer.mig, answer.other_processes, answer.power_limit_w, answer.taken_bytes] == [None] * 4
    assert not [*gpu.find_faults(answer)]


def test_why_a_gpu_cannot_be_asked(monkeypatch):
    assert gpu.open_gpu(SimpleNamespace(device=torch.device("cpu"))) == "the ranks run on the CPU"
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    cuda = SimpleNamespace(device=torch.device("cuda", 0))
    assert "'.[gpu]'" in gpu.open_gpu(cuda)

    class Broken(Nvml):
        def nvmlInit(self):
            raise self.NVMLError("Driver Not Loaded")

    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: place)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Broken())
    assert gpu.open_gpu(cuda) == "NVML does not answer: Driver Not Loaded"
    healthy = Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", healthy)
    assert gpu.open_gpu(cuda) == (healthy, "handle") and healthy.asked == [b"00000000:3B:00.0"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    assert "PCI" in gpu.open_gpu(cuda)
    proof = gpu.judge_gpus(NODES, ["Driver Not Loaded"] * 16)
    assert (proof.verdict, proof.text) == (Verdict.UNCHECKED, "Driver Not Loaded")


def test_gpus_that_were_not_asked_are_counted_beside_those_that_pass():
    proof = gpu.judge_gpus(NODES, [state(), "no pynvml"])
    assert proof.verdict == "pass" and proof.text.endswith("alone; 1 of 2 not asked: no pynvml")
