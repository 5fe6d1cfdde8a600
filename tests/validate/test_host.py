"""What hosts say of themselves: composed answers of NVML (tests/composed) and lines of the kernel's log. No GPU was asked."""

from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from composed.nvml import GIB, Nvml
from isobatch.diagnosis.causes import Cause
from isobatch.validate import Verdict
from isobatch.validate.host import checks, gpu, system
from isobatch.validate.host.checks import judge
from isobatch.validate.host.system import CheckResult, HostFault

BUS = "00000000:3B:00.0"


def roster(nodes=2, per_node=8):
    return [
        SimpleNamespace(
            host=f"n{rank // per_node}", node=rank // per_node, local_rank=rank % per_node, rank=rank
        )
        for rank in range(nodes * per_node)
    ]


def group(nodes=2, per_node=8):
    return SimpleNamespace(roster=roster(nodes, per_node), world_size=nodes * per_node, nodes=nodes)


def state(module=None, rank=0, ranks_here=1):
    return gpu.state(gpu.board_at(module or Nvml(), BUS), rank, 0, ranks_here)


# ---- GPUs ----


def test_contexts_of_the_jobs_own_ranks_are_not_others():
    used = SimpleNamespace(total=80 << 30, used=5 << 30, free=75 << 30)  # 8 contexts and the driver's reserve
    found = state(Nvml(MemoryInfo=used, ComputeRunningProcesses=[None] * 8), ranks_here=8)
    assert gpu.check(found).findings == ()
    assert len(gpu.check(state(Nvml(MemoryInfo=used))).findings) == 1


def test_a_driver_older_than_pynvml_does_not_know():
    class Older(Nvml):
        def nvmlDeviceGetFieldValues(self, handle, numbers):
            raise LookupError("NVMLLibraryMismatchError is no NVMLError")

    assert state(Older()).recovery_action is None


def test_a_board_without_any_nvlink_is_a_caution():
    for name, verdict in ("NVIDIA H100 PCIe", "pass"), ("NVIDIA H100 80GB HBM3", "caution"):
        gpus = [state(Nvml(links=[0] * 18, Name=name), rank) for rank in range(8)]
        proof = checks.judge_gpus(group(1), gpus, [gpu.check(one).short() for one in gpus])
        assert proof.verdict == verdict, proof
    lone = checks.judge_gpus(group(8, 1), gpus, [gpu.check(one).short() for one in gpus])
    assert lone.verdict == "pass"


def test_a_healthy_gpu_is_asked_by_its_place_and_passes():
    module = Nvml()
    found = state(module)
    assert module.asked == [BUS.encode()]
    assert (found.name, found.nvlinks, found.nvlinks_up, found.mig) == (
        "NVIDIA H100 80GB HBM3",
        18,
        18,
        False,
    )
    assert (found.power_limit_w, found.other_processes) == (700.0, 0)
    answer = gpu.check(found)
    assert answer.findings == ()
    assert answer.seen == "NVIDIA H100 80GB HBM3, alone, no memory error, 18 of 18 NVLinks up"


@pytest.mark.parametrize(
    ("given", "text", "cause", "fails"),
    [
        (
            {"ComputeRunningProcesses": [SimpleNamespace(pid=1)] * 3},
            "2 other processes",
            Cause.GPU_SHARED,
            True,
        ),
        (
            {"MemoryInfo": SimpleNamespace(total=80 * GIB, used=9 * GIB, free=71 * GIB)},
            "8.41 GiB of the GPU are taken",
            Cause.GPU_SHARED,
            True,
        ),
        ({"MigMode": [1, 1]}, "divided (MIG)", Cause.GPU_SHARED, False),
        ({"recovery": 2}, "reboot the host", Cause.GPU_ILL, True),
        ({"RemappedRows": (0, 1, 0, 1)}, "could not be remapped", Cause.GPU_ILL, True),
        ({"RemappedRows": (0, 1, 1, 0)}, "wait for a reset", Cause.GPU_ILL, False),
        ({"TotalEccErrors": 3}, "3 uncorrected memory errors", Cause.GPU_ILL, False),
        ({"EnforcedPowerLimit": 500_000}, "500 of 700 W", Cause.GPU_THROTTLED, False),
        ({"CurrPcieLinkWidth": 8}, "8 of 16 lanes", Cause.GPU_LINK, False),
        ({"links": [1] * 17 + [0]}, "17 of 18 NVLinks", Cause.GPU_LINK, True),
    ],
)
def test_what_is_wrong_with_a_gpu_is_said(given, text, cause, fails):
    (finding,) = gpu.check(state(Nvml(**given))).findings
    assert text in finding.text
    assert (finding.cause, finding.fails) == (cause, fails)


def test_what_a_gpu_does_not_tell_is_no_fault():
    lacks = (
        "MigMode",
        "TotalEccErrors",
        "RemappedRows",
        "ComputeRunningProcesses",
        "CurrPcieLinkWidth",
        "EnforcedPowerLimit",
    )
    answer = gpu.check(state(Nvml(lacks=lacks, links=[])))
    assert answer.findings == ()
    assert "not told: other_processes, mig, ecc_uncorrected" in answer.seen


def test_a_gpu_with_fewer_links_than_the_others_is_named():
    found = [state(Nvml(links=[1] * (12 if rank == 11 else 18)), rank) for rank in range(16)]
    proof = checks.judge_gpus(group(), found, [gpu.check(one) for one in found])
    assert (proof.verdict, proof.diagnosis.causes) == (Verdict.FAIL, (Cause.GPU_LINK,))
    assert "host n1 GPU 3 (rank 11): NVLinks up: 12, where most GPUs have 18" in proof.text


def test_why_a_gpu_cannot_be_asked(monkeypatch):
    assert gpu.open_board(SimpleNamespace(device=torch.device("cpu"))) == "the ranks run on the CPU"
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert "isobatch[gpu]" in gpu.open_board(SimpleNamespace(device=torch.device("cuda", 0)))

    class Broken(Nvml):
        def nvmlInit(self):
            raise self.NVMLError("Driver Not Loaded")

    assert gpu.board_at(Broken(), BUS) == "NVML does not answer: Driver Not Loaded"
    assert "PCI" in gpu.board_at(Nvml(), None)
    answers = {f"rank {rank}": CheckResult(why_not="Driver Not Loaded") for rank in range(3)}
    proof = judge("gpu", answers)
    assert (proof.verdict, proof.text) == (Verdict.UNCHECKED, "Driver Not Loaded")


def test_who_was_not_asked_is_said_beside_who_passed():
    proof = judge("gpu", {"a": CheckResult(seen="good"), "b": CheckResult(why_not="no pynvml")})
    assert (proof.verdict, proof.text) == (Verdict.PASS, "good; not asked: no pynvml (b)")


def test_a_report_of_512_gpus_stays_small():
    """The part that is new: gathered, and written."""
    found = [state(Nvml(), rank) for rank in range(512)]
    assert len(msgspec.json.format(msgspec.json.encode(found), indent=1)) < 500_000
    long = CheckResult(findings=tuple(HostFault("x" * 1000, Cause.XID) for _ in range(100))).short()
    assert len(msgspec.json.encode(long)) < 2_000


# ---- the kernel's log ----

LOG = """\
4,901,1000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15
4,902,2000000,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=812, name=python, Graphics Exception: ESR 0x50c648=0x1a
4,903,3000000,-;NVRM: Xid (PCI:0000:5e:00): 94, pid=900, name=python3, Contained: SM (0x1). RST: No, D-RST: No
"""


def test_xids_of_a_gpu_and_of_a_program(tmp_path):
    (tmp_path / "kmsg").write_text(LOG)
    found = system.check_log(system.kernel_log(tmp_path / "kmsg"))
    assert [(one.cause, one.fails) for one in found.findings] == [(Cause.XID, False)]
    assert found.findings[0].text.startswith(
        "XID 94 of the GPU at 0000:5e:00, 1 ×: pid=900, name=python3, Contained"
    )
    assert "(1 of programs)" in found.seen


def test_an_xid_while_it_runs_fails():
    after = LOG + "4,904,4000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    found = system.check_log(after, LOG)
    assert [(one.text, one.fails) for one in found.findings] == [
        ("XID 79 of the GPU at 0000:3b:00, 1 ×: GPU has fallen off the bus.", True)
    ]
    assert system.check_log(LOG, LOG).findings == ()
    # A full log drops its oldest lines.
    assert system.check_log(after.removeprefix(LOG), LOG).findings == found.findings
    assert "may not read" in system.check_log(None).why_not
