"""What hosts say of themselves: composed answers of NVML, trees of sysfs and logs of NCCL (tests/composed). No GPU was asked."""

import os
import resource
import socket
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from composed import nccl, sysfs
from composed.nvml import GIB, Nvml
from isobatch.diagnosis.causes import Cause
from isobatch.validate import Verdict
from isobatch.validate.host import checks, gpu, nccl_log, system
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
            "9 GiB of the GPU are taken",
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


# ---- ports ----


def test_ports_are_read_as_the_kernel_has_them(tmp_path):
    root = tmp_path / "infiniband"
    sysfs.port(root, "mlx5_0")
    sysfs.port(root, "mlx5_1", state="1: DOWN", errors={"symbol_error": 4, "link_downed": 1})
    sysfs.port(root, "rdmap0", rate="100 Gb/sec (4X EDR)", layer="Unspecified", driver="efa", errors={})
    found = system.read_ports(root)
    assert [(port.name, port.kind, port.state, port.rate_gbit_s) for port in found] == [
        ("mlx5_0:1", "InfiniBand", "ACTIVE", 400.0),
        ("mlx5_1:1", "InfiniBand", "DOWN", 400.0),
        ("rdmap0:1", "EFA", "ACTIVE", 100.0),
    ]
    assert found[1].errors == {"symbol_error": 4, "link_downed": 1}
    assert system.read_ports(tmp_path / "none") == []


def looks(tmp_path, **hosts):
    """What is said of hosts, each with two ports that are given."""
    found = {}
    for name, given in hosts.items():
        for number, fields in enumerate(given):
            sysfs.port(tmp_path / name / "infiniband", f"mlx5_{number}", **fields)
        found[name] = system.read_ports(tmp_path / name / "infiniband")
    return system.check_ports(found)


def test_a_port_that_is_down_or_slow_is_named_with_its_host(tmp_path):
    good = [{}, {}]
    down = looks(tmp_path / "1", a=good, b=[{}, {"state": "1: DOWN"}], c=good)
    assert [(one.text, one.fails) for one in down["b"].findings] == [
        ("InfiniBand port mlx5_1:1 is DOWN", True)
    ]
    assert not down["a"].findings
    slow = looks(tmp_path / "2", a=good, b=[{"rate": "200 Gb/sec (4X HDR)"}, {}], c=good)
    assert "mlx5_0:1 has 200 Gbit/s, elsewhere 400" in slow["b"].findings[0].text
    fewer = looks(tmp_path / "3", a=good, b=[{}], c=good)
    assert [(one.text, one.fails, one.cause) for one in fewer["b"].findings] == [
        ("1 ports, where most hosts have 2", True, Cause.PORT)
    ]
    assert looks(tmp_path / "4", a=[], b=[])["a"].why_not == system.NO_PORT


def test_errors_that_a_port_counts_meanwhile(tmp_path):
    sysfs.port(tmp_path, "mlx5_0", errors={"symbol_error": 7, "link_downed": 1})
    before = system.read_ports(tmp_path)
    assert system.compare_ports(before, before).findings == ()
    sysfs.port(tmp_path, "mlx5_0", errors={"symbol_error": 9, "link_downed": 2})
    assert [
        (one.text, one.fails) for one in system.compare_ports(before, system.read_ports(tmp_path)).findings
    ] == [
        ("port mlx5_0:1 counted 1 times the link went down meanwhile", True),
        ("port mlx5_0:1 counted 2 symbol errors meanwhile", False),
    ]


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


# ---- limits ----


def test_limits_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 << 20, 8 << 20))
    monkeypatch.setattr(system, "shared_memory", lambda folder: 64 << 20)
    sysfs.write(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000\n"})
    found = system.check_limits(cuda=True, ports=2, bus=None, root=tmp_path)
    assert [one.text for one in found.findings] == [
        "locked memory is limited to 8 MiB, which RDMA needs",
        "/dev/shm has 64 MiB",
    ]
    assert {one.cause for one in found.findings} == {Cause.HOST_LIMIT}
    assert found.seen == "memlock 8 MiB, /dev/shm 0.0625 GiB, a quota of 1.5 processors"
    assert system.check_limits(cuda=False, ports=0, bus=None, root=tmp_path).findings == ()


@pytest.mark.parametrize(("near", "far"), [("0-63", False), ("100000-100063", True)])
def test_a_rank_that_is_bound_away_from_its_gpu(tmp_path, near, far):
    sysfs.write(
        tmp_path,
        {"sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n", "sys/devices/system/node/node1/cpulist": near},
    )
    monkey = system.check_limits(cuda=False, ports=0, bus=BUS, root=tmp_path)
    assert [("NUMA node 1" in one.text) for one in monkey.findings] == [True] * far


def test_what_a_host_counts_meanwhile_is_one_answer():
    bad = CheckResult(findings=(HostFault("port x counted 1", Cause.PORT),))
    both = checks.join([bad, CheckResult(why_not="no cgroup")])
    assert (both.findings, both.why_not) == (bad.findings, None)
    assert checks.join([CheckResult(why_not="no port")]).why_not == "no port"


# ---- NCCL's transports ----


def transports(between, inside):
    return [nccl_log.parse(nccl.log(rank, between=between, inside=inside)) for rank in range(16)]


def judged(between, inside, *, rdma=True, links=18):
    gpus = [state(Nvml(links=[1] * links), rank) for rank in range(16)]
    return checks.judge_transports(group(), transports(between, inside), gpus, {0: rdma, 1: rdma})


def test_the_fastest_transports_pass():
    proof = judged(nccl.INFINIBAND, nccl.NVLINK)
    assert (proof.verdict, proof.text) == (
        Verdict.PASS,
        "P2P/CUMEM (14 links), NET/IB/GDRDMA (2 links); network IB",
    )
    assert (
        nccl_log.parse(nccl.log(7, between=nccl.EFA, inside=nccl.NVLINK)).links[0].detail
        == "NET/AWS Libfabric/0/GDRDMA"
    )


def test_sockets_where_a_port_is_active_are_a_caution():
    proof = judged(nccl.SOCKETS, nccl.NVLINK)
    assert (proof.verdict, proof.diagnosis.causes) == (Verdict.CAUTION, (Cause.SLOW_TRANSPORT,))
    assert "host n0 GPU 7 (rank 7) → rank 8 by NET/Socket/0" in proof.text
    assert "all_reduce_perf" in proof.diagnosis.advice
    assert judged(nccl.SOCKETS, nccl.NVLINK, rdma=False).verdict is Verdict.PASS


def test_shared_memory_between_gpus_with_nvlinks_is_a_caution():
    proof = judged(nccl.INFINIBAND, nccl.SHARED)
    assert proof.verdict is Verdict.CAUTION
    assert "host n0 GPU 0 (rank 0) → rank 1 by SHM/direct/direct" in proof.text
    assert judged(nccl.INFINIBAND, nccl.SHARED, links=0).verdict is Verdict.PASS


def test_a_log_without_channels_is_unchecked():
    empty = [nccl_log.parse("") for _ in range(16)]
    assert checks.judge_transports(group(), empty, [], {}).verdict is Verdict.UNCHECKED


def test_the_log_is_asked_for_only_while_nccl_connects(monkeypatch):
    for name in (*nccl_log.SETTINGS, nccl_log.FILE):
        monkeypatch.delenv(name, raising=False)
    log = nccl_log.Log()
    with log.writing():
        assert os.environ["NCCL_DEBUG_SUBSYS"] == "INIT,NET,GRAPH"
        path = Path(os.environ[nccl_log.FILE].replace("%p", str(os.getpid())))
        path.write_text(nccl.log(7, between=nccl.INFINIBAND, inside=nccl.NVLINK))
    assert not [name for name in os.environ if name.startswith("NCCL_DEBUG")]
    assert log.read().networks == ("IB",)
    log.close()
    assert not path.exists()


def test_the_users_own_log_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    log = nccl_log.Log()
    with log.writing():
        assert os.environ["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG=WARN is set without NCCL_DEBUG_FILE" in log.why_not
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv(nccl_log.FILE, str(tmp_path / "%h.%p"))
    log = nccl_log.Log()
    with log.writing():
        (tmp_path / f"{socket.gethostname()}.{os.getpid()}").write_text(
            nccl.log(0, between=nccl.EFA, inside=nccl.SHARED)
        )
    assert (log.why_not, log.read().links[0].transport) == (None, "SHM")
