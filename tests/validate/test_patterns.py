"""The sums of an all-reduce's pattern, added up as NCCL would in half precision, for up to 16,384 ranks."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from isobatch.validate.proofs.all_reduce import ROW, Pattern, sums, values

RANKS = [1, 2, 3, 8, 64, 65, 100, 320, 512, 1000, 1024, 4096, 16_384]


def addends(ranks, dtype):
    """Each rank's elements, shape (ranks, elements)."""
    return torch.from_numpy(np.stack([values(rank, ranks) for rank in range(ranks)])).to(dtype)


def ring(rows):
    """Adds each rank's row to the sum so far, rounded at every step."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def tree(rows):
    """Adds pairs, and pairs of pairs."""
    while len(rows) > 1:
        even = rows[: len(rows) // 2 * 2]
        rows = torch.cat([even[0::2] + even[1::2], rows[len(even) :]])
    return rows[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ranks", RANKS)
def test_no_order_of_adding_rounds(ranks, dtype):
    rows = addends(ranks, dtype)
    for total in ring(rows), tree(rows), ring(rows.flip(0)):
        assert np.array_equal(total.double().numpy(), sums(ranks))


@pytest.mark.parametrize("ranks", [2, 64, 320, 16_384])
def test_a_rank_that_is_left_out_or_counted_twice_shows(ranks):
    own, expected = values(ranks - 1, ranks), sums(ranks)
    assert own.any()
    assert len(expected) <= 3 * 256


@pytest.mark.parametrize("size", [1000, ROW, 5 * ROW + 1])
def test_wrong_elements_are_counted_wherever_they_are(size):
    cpu = torch.device("cpu")
    buffer = torch.empty(size, dtype=torch.bfloat16)
    patterns = [Pattern(rank, 3, torch.bfloat16, cpu) for rank in range(3)]
    total = torch.zeros_like(buffer)
    for pattern in patterns:
        pattern.fill(buffer)
        total += buffer
    assert patterns[0].wrong(total) == 0
    total[[0, size // 2, size - 1]] += 1
    assert patterns[1].wrong(total) == 3
