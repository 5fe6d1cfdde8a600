"""The logic around CUDA, by simulated answers of CUDA, without a GPU."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from isobatch.equivalence import tensors
from isobatch.equivalence.tensors import checksum, float32_as
from isobatch.validate import Options
from isobatch.validate.proofs import all_reduce, machine, memory
from isobatch.validate.proofs.noise_scale import Norms
from isobatch.validate.ranks import network
from isobatch.validate.ranks.group import Group
from isobatch.validate.ranks.network import Facts, agree, gpu_is_shared
from isobatch.validate.trial import Trial
from isobatch.validate.workload import out_of_memory

MIB = 1 << 20


def facts(rank, *, bus=None, host="a", ranks=0, nccl=None):
    device = "cpu" if bus is None else "cuda"
    own = {"host": host, "machine": host, "device": device, "bus": bus, "nccl": nccl}
    return Facts(address=None, ranks=ranks, local_rank=rank, **own)


def agreed(facts, present=None, seconds=20):
    """Returns what the first ranks learn of each other, all the same, or their refusal."""
    store = torch.distributed.HashStore()

    def run(rank):
        own = msgspec.structs.replace(facts[rank], ranks=facts[rank].ranks or len(facts))
        try:
            return agree(store, "run", rank, own, timedelta(seconds=seconds))
        except ib.InputError as error:
            return str(error)

    count = present or len(facts)
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(run, range(count)))
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


@pytest.mark.parametrize(
    ("gpus", "hosts", "expected"),
    [
        (["a", "b", "c"], "hhh", False),
        (["a", "b", "a"], "hhh", True),
        (["a", "a"], "hh", True),
        (["a", "a"], "hi", False),
        ([None, None], "hh", False),
        (["a"], "h", False),
    ],
)
def test_a_gpu_is_known_by_its_own_place_in_its_host(gpus, hosts, expected):
    """Not by the number in sight: under Slurm each rank sees its own; each slice has number 0."""
    ranks = [facts(rank, bus=bus, host=hosts[rank]) for rank, bus in enumerate(gpus)]
    assert gpu_is_shared(agreed(ranks)) is expected


def test_a_host_without_a_gpu_is_named_before_anybody_waits_for_it():
    text = (
        "the hosts have different devices: cuda on a, cpu on b; look at the GPUs of b "
        "(nvidia-smi), or pass --device cpu"
    )
    assert text in agreed([facts(0, bus="0"), facts(1, bus="1"), facts(0, host="b")])


def test_other_versions_of_nccl_and_other_numbers_of_ranks_are_refused():
    versions = [facts(0, bus="0", nccl="2.27.3"), facts(1, bus="1", host="b", nccl="2.28.9")]
    assert "2.27.3 on a, 2.28.9 on b" in agreed(versions)
    assert "2 on a, 3 on b" in agreed([facts(0, ranks=2), facts(0, host="b", ranks=3)], seconds=0.3)


def test_ranks_that_do_not_arrive_are_named():
    text = agreed([facts(rank) for rank in range(4)], present=2, seconds=0.3)
    assert text.startswith("ranks 2, 3 of 4 did not arrive within 0.3 s")


def test_gloo_gets_the_interface_towards_another_host(monkeypatch):
    """Where its name is 127.0.1.1, rank 0 would listen in vain; NCCL finds its own."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(network, "address_towards", {"10.0.0.2": "10.0.0.1"}.get)
    monkeypatch.setattr(network, "_interface_of", {"10.0.0.1": "eth0", "127.0.0.1": "lo"}.get)
    network.set_interface("127.0.0.1", ["127.0.0.1", "10.0.0.2"])
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "eth0"
    network.set_interface("127.0.0.1", ["127.0.0.1", "127.0.0.1"])
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "lo"
    assert "NCCL_SOCKET_IFNAME" not in os.environ


class Cuda:
    """An allocator of so many MiB; a step of n samples takes 10 + 20 n, and reserves a tenth more."""

    def __init__(self, monkeypatch, size):
        self.size, self.taken, self.emptied = size * MIB, 0, 0
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.taken)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.taken + self.taken // 10)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.size, self.size))
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)

    def empty(self):
        self.emptied += 1

    def step(self, n):
        self.taken = (10 + 20 * n) * MIB
        if self.taken > self.size:
            self.taken = self.size
            raise torch.OutOfMemoryError("CUDA out of memory")
        if n > 1000:
            raise RuntimeError("invalid configuration argument")

    def training(self, micro_batch, limit_gib=None):
        group = SimpleNamespace(
            rank=0,
            device=torch.device("cuda", 0),
            gather=lambda value, _=None: [value],
            from_first=lambda value, _=None: value,
            limit=timedelta(seconds=60),
            pulse=SimpleNamespace(who=lambda rank: f"rank {rank}"),
        )
        return SimpleNamespace(
            group=group,
            micro_batch=micro_batch,
            lone_step=self.step,
            model=torch.nn.Linear(1, 1),
            options=SimpleNamespace(memory_limit_gib=limit_gib, extent="quick"),
        )


def test_the_search_ends_where_the_allocator_does(monkeypatch):
    cuda = Cuda(monkeypatch, 1024)
    search = memory.search(cuda.training(8))
    assert (search.largest_micro_batch, search.complete) == (50, True)
    assert cuda.emptied == len(search.tries)
    best = next(size for size in search.tries if size.micro_batch == 50)
    assert best.peak_memory_kind == "cuda_allocated"
    assert best.fragmentation_bytes == best.peak_memory_reserved_bytes - best.peak_memory_bytes > 0
    # A limit below the device is of the reserved memory.
    limited = memory.search(Cuda(monkeypatch, 100_000).training(8, limit_gib=1.0))
    assert limited.largest_micro_batch == int((1024 / 1.1 - 10) / 20)


def test_the_recommended_size_leaves_a_reserve(monkeypatch):
    """At least 2 GiB of the GPU: a step takes 10 MiB and 20 a sample, and the allocator a tenth more."""
    large = memory.search(Cuda(monkeypatch, 100 * 1024).training(8))
    assert large.recommended_micro_batch == large.largest_micro_batch == 1000
    small = memory.search(Cuda(monkeypatch, 10 * 1024).training(8))
    assert small.largest_micro_batch == 511
    assert small.recommended_micro_batch == pytest.approx((8 * 1024 / 1.1 - 10) / 20, abs=1)
    best = next(size for size in small.tries if size.micro_batch == small.largest_micro_batch)
    assert best.left_bytes == 10 * 1024 * MIB - best.peak_memory_reserved_bytes


@pytest.fixture(autouse=True)
def _working(monkeypatch):
    monkeypatch.setattr(memory, "_device_works", lambda group: True)


def test_a_size_that_no_kernel_can_do_does_not_fit_and_an_error_that_stays_is_raised(monkeypatch):
    assert memory.search(Cuda(monkeypatch, 100_000).training(8)).largest_micro_batch == 1000
    with pytest.raises(RuntimeError, match="invalid configuration"):
        memory.prove_fits(Cuda(monkeypatch, 100_000).training(2000))
    (proof,) = memory.prove_fits(Cuda(monkeypatch, 20).training(8))
    assert "not even one sample fits" in proof.text
    monkeypatch.setattr(memory, "_device_works", lambda group: False)
    with pytest.raises(RuntimeError, match="invalid configuration"):
        memory.search(Cuda(monkeypatch, 100_000).training(8))


def test_ranks_on_gpus_begin_on_the_stream_itself(monkeypatch):
    """Not by their hosts' clocks: a kernel sleeps until Python has launched a collective and the work."""
    calls = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            calls.append("event")

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append("sleep"))
    monkeypatch.setattr(torch.distributed, "barrier", lambda group: calls.append("barrier"))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: calls.append("all-reduce"))
    group = object.__new__(Group)
    group.device, group.backend, group.control, group._one = torch.device("cuda", 0), "nccl", None, None
    assert group.time(lambda: calls.append("work")) == 0.003
    assert calls == ["barrier", "sleep", "all-reduce", "event", "work", "event"]


def test_gpus_are_held_to_closer_gates():
    windows = np.array([[0.010] * 25, [0.0108] * 25, [0.010] * 25])
    for device, verdict in ("cpu", "pass"), ("cuda", "caution"):
        group = SimpleNamespace(device=torch.device(device), pulse=SimpleNamespace(who=str))
        assert machine.judge_windows(group, windows, "ranks", "work").verdict == verdict


def test_sizes_on_gpus():
    for extent, largest in ("quick", 1 << 28), ("usual", 1 << 30), ("full", 1 << 33):
        sizes = all_reduce.sizes(Options(extent=extent), True, [5000])
        assert max(size.bytes for size in sizes) == largest
        assert [size.bytes for size in sizes if size.bucket] == [5000]
        assert len({size.dtype for size in sizes}) == (1 if extent == "quick" else 3)


def test_the_clusters_bandwidth_is_what_is_expected_of_gpus():
    cluster = ib.Cluster(nodes=2, gpus_per_node=8, intra_gb_s=240.0, inter_gb_s=25.0)
    plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1), cluster)
    for device, nodes, bus_gb_s, expected in (
        ("cuda", 1, None, 240),
        ("cuda", 2, None, 25),
        ("cuda", 2, 7.0, 7),
        ("cpu", 1, None, None),
    ):
        group = SimpleNamespace(device=torch.device(device), nodes=nodes)
        assert all_reduce.expected_gb_s(group, Options(bus_gb_s=bus_gb_s), plan) == expected


def judged_bandwidth(size, ranks=8, fastest=1.0, device="cuda", **options):
    row = SimpleNamespace(dtype="float32", bytes=size, bus_bw_gb_s=100.0, samples_us=[fastest], time_us=1.0)
    group = SimpleNamespace(world_size=ranks, emulated=False, device=torch.device(device))
    return all_reduce.judge_bandwidth(group, Options(**options), [row], 400.0)


@pytest.mark.parametrize(
    ("size", "options", "verdict", "causes"),
    [
        (1 << 30, {}, "caution", ("slow_link",)),
        # Nor does a noisy host end the command with exit code 1.
        (1 << 30, {"fastest": 0.2}, "caution", ("noisy_host",)),
        (1 << 30, {"fastest": 0.2, "device": "cpu"}, "inconclusive", ("noisy_host",)),
        # Below the links' plateau the cluster's figure does not count.
        (1 << 28, {"ranks": 512}, "unchecked", None),
        (1 << 28, {"ranks": 512, "bus_gb_s": 400.0}, "caution", ("slow_link",)),
    ],
)
def test_a_fabric_that_looks_slow_is_a_caution(size, options, verdict, causes):
    proof = judged_bandwidth(size, **options)
    assert (proof.verdict, proof.diagnosis and proof.diagnosis.causes) == (verdict, causes)


def test_norms_of_buckets_stay_apart_until_the_step_is_over():
    """On a GPU they are computed on streams that run at once: a running sum would lose some."""

    def halved(_, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer() / 2)
        return future

    norms = Norms(halved)
    for value in 1.0, 2.0:
        norms(None, SimpleNamespace(buffer=lambda value=value: torch.full((3,), value)))
    assert len(norms._local) == len(norms._averaged) == 2
    assert norms.take() == (15.0, 3.75)
    assert norms.take() == (0.0, 0.0)


def test_a_large_model_and_a_compiled_one_have_more_time():
    model = torch.nn.Linear(70_000, 100_000, bias=False, device="meta")
    trial = Trial(None, None, SimpleNamespace(model=model), None, None)
    assert trial.allowance_seconds == 280  # 28 GB
    trial.compile_seconds = 50.0
    assert trial.allowance_seconds == 480


def test_collectives_wait_as_long_as_the_phase_may_take():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    try:
        granted = []
        group = object.__new__(Group)
        group.control, group.limit, group._made = torch.distributed.new_group(), timedelta(seconds=60), True
        group.pulse = SimpleNamespace(grant=granted.append)
        group.allow(280.0)
        for member in group.control, torch.distributed.group.WORLD:
            assert member._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=370)
        assert granted == [280.0]
    finally:
        torch.distributed.destroy_process_group()


def test_how_cuda_says_that_memory_ran_out():
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"))
    assert out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize("before", ["highest", "high"])
@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_both_generations_of_switches_agree_and_come_back(before, mode):
    """torch.compile reads the older ones, which raise where the newer ones say something else."""

    def read():
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        precision = getattr(cuda, "fp32_precision", None)
        return torch.get_float32_matmul_precision(), cuda.allow_tf32, cudnn.allow_tf32, precision

    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    switches = read()
    try:
        with float32_as(mode):
            assert read()[:3] == (("highest", False, False) if mode == "ieee" else ("high", True, True))
            assert read()[3] in (mode, None)
        assert read() == switches
    finally:
        torch.set_float32_matmul_precision(usual)


def test_a_checksum_by_parts_is_that_of_the_whole(monkeypatch):
    some = [torch.randn(1001), torch.randn(3, 7).half(), torch.zeros(())]
    whole = checksum(some)
    monkeypatch.setattr(tensors, "WORDS", 64)
    assert checksum(some) == whole
    some[0][1000] += 1
    assert checksum(some) != whole
