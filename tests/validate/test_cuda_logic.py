"""The logic around CUDA, with a CUDA that is made up: what can be looked at where there is no GPU."""

import os
import threading
from datetime import timedelta
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from isobatch.diagnosis import tensors
from isobatch.diagnosis.tensors import checksum, float32_as
from isobatch.validate import Options
from isobatch.validate.proofs import all_reduce, machine, memory
from isobatch.validate.proofs.noise_scale import Norms
from isobatch.validate.ranks import network
from isobatch.validate.ranks.group import Group
from isobatch.validate.ranks.network import Facts, agree, gpu_is_shared
from isobatch.validate.trial import Trial
from isobatch.validate.workload import out_of_memory

MIB = 1 << 20


def facts(rank, *, bus=None, host="a", ranks=None, nccl=None, address=None):
    return Facts(
        host=host,
        machine=host,
        address=address,
        ranks=ranks or 0,
        local_rank=rank,
        device="cpu" if bus is None else "cuda",
        bus=bus,
        nccl=nccl,
    )


def agreed(found, come=None, seconds=20):
    """What each of some ranks learns of the others, or is refused with; those come that are counted."""
    store, told = torch.distributed.HashStore(), {}

    def rank(index):
        mine = msgspec.structs.replace(found[index], ranks=found[index].ranks or len(found))
        try:
            told[index] = agree(store, "run", index, mine, timedelta(seconds=seconds))
        except ib.InputError as error:
            told[index] = str(error)

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(come or len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == told[0] for one in told.values())
    return told[0]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (["a", "b", "c"], False),
        (["a", "b", "a"], True),
        (["a", "a"], True),
        ([None, None], False),
        (["a"], False),
    ],
)
def test_a_gpu_is_known_by_its_own_place(gpus, expected):
    """Not by how many a rank sees: under Slurm each sees one, its own.

    Nor by a number that each slice of it has for itself.
    """
    assert gpu_is_shared(agreed([facts(rank, bus=bus) for rank, bus in enumerate(gpus)])) is expected


def test_the_same_place_in_another_host_is_another_gpu():
    assert not gpu_is_shared(agreed([facts(0, bus="0"), facts(0, bus="0", host="b")]))


def test_a_host_without_a_gpu_is_named_before_anybody_waits_for_it():
    said = agreed([facts(0, bus="0"), facts(1, bus="1"), facts(0, host="b")])
    assert said == (
        "the hosts have different devices: cuda on a, cpu on b; look at the GPUs of b (nvidia-smi), or pass "
        "--device cpu"
    )


def test_other_versions_of_nccl_and_other_numbers_of_ranks_are_refused():
    said = agreed([facts(0, bus="0", nccl="2.27.3"), facts(1, bus="1", host="b", nccl="2.28.9")])
    assert "2.27.3 on a, 2.28.9 on b" in said
    assert "2 on a, 3 on b" in agreed([facts(0, ranks=2), facts(0, host="b", ranks=3)], seconds=0.3)


def test_who_does_not_come_is_named():
    said = agreed([facts(rank) for rank in range(4)], come=2, seconds=0.3)
    assert said.startswith("ranks 2, 3 of 4 did not arrive within 0.3 s")


def test_gloo_gets_the_interface_towards_another_host(monkeypatch):
    """Where a host's own name is 127.0.1.1, rank 0 would else listen where no other host reaches it.

    NCCL finds its own.
    """
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
    """An allocator of so many MiB, of which a step of n samples takes 10 + 20 n, and reserves a tenth more."""

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
    found = memory.search(cuda.training(8))
    assert (found.largest_micro_batch, found.complete) == (50, True)
    assert cuda.emptied == len(found.tries)
    best = next(one for one in found.tries if one.micro_batch == 50)
    assert best.peak_memory_kind == "cuda_allocated"
    assert best.fragmentation_bytes == best.peak_memory_reserved_bytes - best.peak_memory_bytes > 0


def test_the_recommended_size_leaves_a_reserve(monkeypatch):
    """At least 2 GiB of the GPU: a step takes 10 MiB and 20 a sample, and the allocator a tenth more."""
    found = memory.search(Cuda(monkeypatch, 100 * 1024).training(8))
    assert found.recommended_micro_batch == found.largest_micro_batch == 1000
    small = memory.search(Cuda(monkeypatch, 10 * 1024).training(8))
    assert small.largest_micro_batch == 511
    assert small.recommended_micro_batch == pytest.approx((8 * 1024 / 1.1 - 10) / 20, abs=1)
    best = next(one for one in small.tries if one.micro_batch == small.largest_micro_batch)
    assert best.left_bytes == 10 * 1024 * MIB - best.peak_memory_reserved_bytes


def test_a_limit_below_the_device_is_held_by_what_is_reserved(monkeypatch):
    found = memory.search(Cuda(monkeypatch, 100_000).training(8, limit_gib=1.0))
    assert found.largest_micro_batch == int((1024 / 1.1 - 10) / 20)


@pytest.fixture(autouse=True)
def _working(monkeypatch):
    monkeypatch.setattr(memory, "_device_works", lambda group: True)


def test_an_error_that_stays_is_raised(monkeypatch):
    """It is no size that does not fit: whatever comes after it fails, too."""
    monkeypatch.setattr(memory, "_device_works", lambda group: False)
    with pytest.raises(RuntimeError, match="invalid configuration"):
        memory.search(Cuda(monkeypatch, 100_000).training(8))


def test_a_size_that_no_kernel_can_do_does_not_fit(monkeypatch):
    found = memory.search(Cuda(monkeypatch, 100_000).training(8))
    assert found.largest_micro_batch == 1000
    with pytest.raises(RuntimeError, match="invalid configuration"):
        memory.prove_fits(Cuda(monkeypatch, 100_000).training(2000))


def test_nothing_fits(monkeypatch):
    (proof,) = memory.prove_fits(Cuda(monkeypatch, 20).training(8))
    assert "not even one sample fits" in proof.text


def test_ranks_on_gpus_begin_on_the_stream_itself(monkeypatch):
    """Not by their hosts' clocks.

    A kernel sleeps until Python has launched the collective that they meet in, and what is timed.
    """
    happened = []

    class Event:
        def __init__(self, enable_timing):
            self.name = f"event {sum('made' in one for one in happened)}"
            happened.append(f"{self.name} made")

        def record(self):
            happened.append(self.name)

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: happened.append("sleep"))
    monkeypatch.setattr(torch.distributed, "barrier", lambda group: happened.append("barrier"))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda one: happened.append("meet"))
    group = object.__new__(Group)
    group.device, group.backend, group.control, group._one = torch.device("cuda", 0), "nccl", None, None
    assert group.time(lambda: happened.append("work")) == 0.003
    told = [one for one in happened if "made" not in one]
    assert told == ["barrier", "sleep", "meet", "event 0", "work", "event 1"]


def test_gpus_are_held_to_closer_gates():
    windows = np.array([[0.010] * 25, [0.0108] * 25, [0.010] * 25])
    for device, verdict in ("cpu", "pass"), ("cuda", "caution"):
        group = SimpleNamespace(device=torch.device(device), pulse=SimpleNamespace(who=str))
        assert machine.judge_windows(group, windows, "ranks", "work").verdict == verdict


def test_sizes_on_gpus():
    for extent, largest in ("quick", 1 << 28), ("usual", 1 << 30), ("full", 1 << 33):
        found = all_reduce.sizes(Options(extent=extent), True, [5000])
        assert max(size.bytes for size in found) == largest
        assert [size.bytes for size in found if size.bucket] == [5000]
        assert len({size.dtype for size in found}) == (1 if extent == "quick" else 3)


def test_the_clusters_bandwidth_is_what_is_expected_of_gpus():
    cluster = ib.Cluster(nodes=2, gpus_per_node=8, intra_gb_s=240.0, inter_gb_s=25.0)
    plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1), cluster)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert all_reduce.expected_gb_s(SimpleNamespace(device=gpu, nodes=1), Options(), plan) == 240
    assert all_reduce.expected_gb_s(SimpleNamespace(device=gpu, nodes=2), Options(), plan) == 25
    assert all_reduce.expected_gb_s(SimpleNamespace(device=gpu, nodes=2), Options(bus_gb_s=7.0), plan) == 7
    assert all_reduce.expected_gb_s(SimpleNamespace(device=cpu, nodes=1), Options(), plan) is None


def judged_bandwidth(size, ranks=8, fastest=1.0, device="cuda", **options):
    row = SimpleNamespace(dtype="float32", bytes=size, bus_bw_gb_s=100.0, samples_us=[fastest], time_us=1.0)
    group = SimpleNamespace(world_size=ranks, emulated=False, device=torch.device(device))
    return all_reduce.judge_bandwidth(group, Options(**options), [row], 400.0)


def test_a_fabric_that_looks_slow_is_a_caution():
    proof = judged_bandwidth(1 << 30)
    assert (proof.verdict, proof.diagnosis.causes) == ("caution", ("slow_link",))
    # Nor does a noisy one end the command with exit code 1.
    for device, verdict in ("cuda", "caution"), ("cpu", "inconclusive"):
        proof = judged_bandwidth(1 << 30, fastest=0.2, device=device)
        assert (proof.verdict, proof.diagnosis.causes) == (verdict, ("noisy_host",))


def test_sizes_below_the_links_plateau_are_not_judged_by_the_cluster():
    assert judged_bandwidth(1 << 28, ranks=512).verdict == "unchecked"
    assert judged_bandwidth(1 << 28, ranks=512, bus_gb_s=400.0).verdict == "caution"


def test_norms_of_buckets_stay_apart_until_the_step_is_over():
    """On a GPU they are computed on streams that run at once: a running sum would lose some."""

    def halved(_, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer() / 2)
        return done

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
        for one in group.control, torch.distributed.group.WORLD:
            assert one._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=370)
        assert granted == [280.0]
    finally:
        torch.distributed.destroy_process_group()


def test_how_cuda_says_that_memory_ran_out():
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"))
    assert out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_tensor_float_is_off_and_comes_back(mode):
    switch = torch.backends.cuda.matmul
    if not hasattr(switch, "fp32_precision"):
        pytest.skip("this torch has the older names only")
    before = switch.fp32_precision
    switch.fp32_precision = mode
    try:
        with float32_as("ieee"):
            assert switch.fp32_precision == "ieee"
        assert switch.fp32_precision == mode
    finally:
        switch.fp32_precision = before


@pytest.mark.parametrize("before", ["highest", "high"])
@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_both_generations_of_switches_agree(before, mode):
    """torch.compile reads the older ones, which raise where the newer ones say something else."""

    def read():
        return (
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
        )

    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    found = read()
    try:
        with float32_as(mode):
            assert read() == (("highest", False, False) if mode == "ieee" else ("high", True, True))
        assert read() == found
    finally:
        torch.set_float32_matmul_precision(usual)


def test_a_checksum_by_parts_is_that_of_the_whole(monkeypatch):
    some = [torch.randn(1001), torch.randn(3, 7).half(), torch.zeros(())]
    whole = checksum(some)
    monkeypatch.setattr(tensors, "WORDS", 64)
    assert checksum(some) == whole
    some[0][1000] += 1
    assert checksum(some) != whole
