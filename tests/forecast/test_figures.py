"""Figures of others' tools: against NCCL's and torch's own."""

from __future__ import annotations

import math

import pytest

import isobatch as ib
from isobatch.forecast.figures import bus_factor, ddp_buckets, half_life


def test_the_bus_factor_is_nccl_tests():
    """doc/PERFORMANCE.md of nccl-tests: all-reduce 2(n−1)/n, gathers and scatters (n−1)/n, broadcast and reduce 1."""
    assert [bus_factor(n) for n in (1, 2, 8)] == [0.0, 1.0, 1.75]
    assert [bus_factor(4, kind) for kind in ("all_gather", "reduce_scatter", "all_to_all")] == [0.75] * 3
    assert bus_factor(4, "broadcast") == bus_factor(4, "reduce") == 1.0
    with pytest.raises(ib.InputError, match="did you mean 'all_reduce'"):
        bus_factor(4, "allreduce")
    with pytest.raises(ib.InputError, match="gpus"):
        bus_factor(0)


def test_buckets_are_torchs():
    torch = pytest.importorskip("torch", reason="compares with torch's own buckets")
    import torch.distributed as dist

    draw = torch.Generator().manual_seed(3)
    for _ in range(50):
        count = int(torch.randint(1, 60, (1,), generator=draw))
        sizes = torch.randint(1, 300_000, (count,), generator=draw).tolist()
        cap = float(torch.randint(1, 30, (1,), generator=draw)) / 10
        tensors = [torch.empty(size, dtype=torch.float32) for size in sizes]
        limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, int(cap * 1024 * 1024)]
        indices, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
        wanted = [sum(4 * sizes[i] for i in bucket) for bucket in indices]
        assert [*ddp_buckets([4 * size for size in sizes], bucket_cap_mb=cap)] == wanted
    assert ddp_buckets([]) == ()
    with pytest.raises(ib.InputError, match="bucket_cap_mb"):
        ddp_buckets([1], bucket_cap_mb=0)


def test_beta_half_life_holds_the_half_life():
    recipe = ib.Recipe(effective_batch=256, lr=1e-3, betas=(0.9, 0.95), seq_len=1024)
    plan = ib.plan(recipe, 8, policy=1024, beta_half_life=True)
    tokens = half_life(0.95, 256, 1024)
    assert half_life(plan.beta2, 1024, 1024) == pytest.approx(tokens)
    assert tokens == pytest.approx(math.log(0.5) / math.log(0.95) * 256 * 1024)
    for beta in (0.0, 1.0, float("nan")):
        with pytest.raises(ib.InputError, match="beta"):
            half_life(beta, 1)
