"""The logic around CUDA, with a CUDA that is made up: what can be looked at where there is no GPU."""

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from isobatch.diagnosis.checksum import checksum
from isobatch.diagnosis.precision import float32_as
from isobatch.validate.measure import memory
from isobatch.validate.proofs.memory import prove_fits
from isobatch.validate.ranks.group import gpu_is_shared
from isobatch.validate.step.training import out_of_memory

MIB = 1 << 20


def shared(gpus):
    """What each of some ranks on these GPUs is told."""
    store, told = torch.distributed.HashStore(), [None] * len(gpus)

    def rank(index):
        told[index] = gpu_is_shared(store, "run", gpus[index], len(gpus), timedelta(seconds=20))

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(len(gpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(told)) == 1
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
def test_a_gpu_is_known_by_its_own_number(gpus, expected):
    """Not by how many a rank sees: under Slurm each sees one, its own."""
    assert shared(gpus) is expected


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
