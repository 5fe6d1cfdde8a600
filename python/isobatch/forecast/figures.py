"""Figures that others' tools report, or keep to themselves: NCCL's bus bandwidth, DDP's buckets, how long beta2 remembers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from isobatch.checked import real
from isobatch.errors import must_be, unknown

Collective: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"
]
MIB = 2**20


def bus_factor(gpus: int, collective: Collective = "all_reduce") -> float:
    """What the bytes over the seconds of a collective are multiplied by to get nccl-tests' `busbw` from its `algbw`.

    Args:
        gpus: how many take part.
        collective: which; `all_reduce` sends 2(n−1)/n of its bytes over each link, those that gather or scatter (n−1)/n, a broadcast
            or a reduce all of them (nccl-tests, doc/PERFORMANCE.md).

    Returns:
        A number from 0 (one GPU moves nothing) to below 2.

    Raises:
        InputError: there is no such collective, or no GPU.

    >>> bus_factor(8), bus_factor(8, "all_gather")
    (1.75, 0.875)
    >>> round(1e8 / 1.82e-3 * bus_factor(8) / 1e9, 1)  # GB/s on the bus, of 100 MB in 1.82 ms
    96.2
    """
    count = _whole(gpus, "gpus")
    factors = {
        "all_reduce": 2 * (count - 1) / count,
        "all_gather": (count - 1) / count,
        "reduce_scatter": (count - 1) / count,
        "all_to_all": (count - 1) / count,
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    if not isinstance(collective, str) or collective not in factors:
        raise unknown("collective", collective, factors, field="collective")
    return factors[collective]


def ddp_buckets(
    gradient_bytes: Sequence[int], *, bucket_cap_mb: float = 25.0, first_bucket_mb: float = 1.0
) -> tuple[int, ...]:
    """The buckets in which DistributedDataParallel reduces gradients, for `Profile.bucket_bytes`.

    Torch fills a bucket until it holds its limit or more, the first one up to `first_bucket_mb` so that reducing begins early
    (torch, reducer.cpp: compute_bucket_assignment_by_size). That is by dtype and device; here all gradients are of one.

    Args:
        gradient_bytes: of each parameter, in the order in which the gradients are ready: the last layer's first.
        bucket_cap_mb: DDP's argument of this name, in MiB.
        first_bucket_mb: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, in MiB.

    Returns:
        Bytes of each bucket; as many as there are all-reduces in a step.

    Raises:
        InputError: a size that is no whole number from 1, or a cap that is not above 0.

    >>> ddp_buckets([512 * 2**10] * 8, bucket_cap_mb=2)
    (1048576, 2097152, 1048576)
    >>> len(ddp_buckets([4 * 2**20] * 24))  # 96 MiB: the first, and 7, 7, 7, 2
    5
    """
    limits = [
        real(value, name, "a number of MiB above 0", lambda x: x > 0) * MIB
        for name, value in (("first_bucket_mb", first_bucket_mb), ("bucket_cap_mb", bucket_cap_mb))
    ]
    buckets: list[int] = []
    held = 0
    for size in gradient_bytes:
        held += _whole(size, "gradient_bytes")
        if held >= limits[bool(buckets)]:
            buckets.append(held)
            held = 0
    return (*buckets, held) if held else tuple(buckets)


def half_life(beta: float, effective_batch: int, seq_len: int = 1) -> float:
    """After how many samples, or tokens, half of what a running average remembers is forgotten: ln ½ / ln β steps.

    Marek et al. 2025 (arXiv 2507.07101) hold beta2's half-life in tokens where the batch changes; `beta_half_life=True` does so.

    Args:
        beta: of Adam's second moment, or any average that is multiplied by it in each step.
        effective_batch: samples in a step.
        seq_len: tokens in a sample; 1 gives the half-life in samples.

    Raises:
        InputError: beta is not between 0 and 1, or a count is below 1.

    >>> round(half_life(0.95, 512, 2048))  # tokens
    14169835
    >>> round(half_life(0.95**0.5, 256, 2048))  # half the batch at the root of beta2: the same
    14169835
    """
    share = real(beta, "beta", "a number above 0 and below 1", lambda x: 0 < x < 1)
    steps = math.log(0.5) / math.log(share)
    return steps * _whole(effective_batch, "effective_batch") * _whole(seq_len, "seq_len")


def _whole(value: int, name: str) -> int:
    if type(value) is not int or value < 1:
        raise must_be("a whole number from 1", value, field=name)
    return value
