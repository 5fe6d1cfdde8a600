"""The logic around CUDA, with a CUDA that is made up: what can be looked at where there is no GPU."""

import os
import threading
from datetime import timedelta
from types import SimpleNamespace

import msgspec
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from isobatch.diagnosis.checksum import checksum
from isobatch.diagnosis.precision import float32_as
from isobatch.validate.measure import memory
from isobatch.validate.proofs.memory import prove_fits
from isobatch.validate.ranks import network
from isobatch.validate.ranks.facts import Facts, agree, gpu_is_shared
from isobatch.validate.step.training import out_of_memory

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
        torch="2.15",
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
    """Not by how many a rank sees: under Slurm each sees one, its own. Nor by a number that each slice of it has for itself."""
    assert gpu_is_shared(agreed([facts(rank, bus=bus) for rank, bus in enumerate(gpus)])) is expected


def test_the_same_place_in_another_host_is_another_gpu():
    assert not gpu_is_shared(agreed([facts(0, bus="0"), facts(0, bus="0", host="b")]))


def test_a_host_without_a_gpu_is_named_before_anybody_waits_for_it():
    said = agreed([facts(0, bus="0"), facts(1, bus="1"), facts(0, host="b")])
    assert said == (
        "the hosts have different devices: cuda on a, cpu on b; look at the GPUs of b (nvidia-smi), or pass --device cpu"
    )


def test_other_versions_of_nccl_and_other_numbers_of_ranks_are_refused():
    said = agreed([facts(0, bus="0", nccl="2.27.3"), facts(1, bus="1", host="b", nccl="2.28.9")])
    assert "2.27.3 on a, 2.28.9 on b" in said
    assert "2 on a, 3 on b" in agreed([facts(0, ranks=2), facts(0, host="b", ranks=3)], seconds=0.3)


def test_who_does_not_come_is_named():
    said = agreed([facts(rank) for rank in range(4)], come=2, seconds=0.3)
    assert said.startswith("ranks 2, 3 of 4 did not come within 0.3 s")


def test_gloo_gets_the_interface_towards_another_host(monkeypatch):
    """Where a host's own name is 127.0.1.1, rank 0 would else listen where no other host reaches it. NCCL finds its own."""
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
            gather=lambda value: [value],
            from_first=lambda value: value,
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


def test_a_limit_below_the_device_is_held_by_what_is_reserved(monkeypatch):
    found = memory.search(Cuda(monkeypatch, 100_000).training(8, limit_gib=1.0))
    assert found.largest_micro_batch == int((1024 / 1.1 - 10) / 20)


def test_a_size_that_no_kernel_can_do_does_not_fit(monkeypatch):
    found = memory.search(Cuda(monkeypatch, 100_000).training(8))
    assert found.largest_micro_batch == 1000
    with pytest.raises(RuntimeError, match="invalid configuration"):
        prove_fits(Cuda(monkeypatch, 100_000).training(2000))


def test_nothing_fits(monkeypatch):
    proof = prove_fits(Cuda(monkeypatch, 20).training(8))
    assert "not even one sample fits" in proof.text


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


def test_a_checksum_by_parts_is_that_of_the_whole(monkeypatch):
    from isobatch.diagnosis import checksum as module

    tensors = [torch.randn(1001), torch.randn(3, 7).half(), torch.zeros(())]
    whole = checksum(tensors)
    monkeypatch.setattr(module, "WORDS", 64)
    assert checksum(tensors) == whole
    tensors[0][1000] += 1
    assert checksum(tensors) != whole
