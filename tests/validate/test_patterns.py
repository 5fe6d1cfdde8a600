"""The sums of an all-reduce's pattern, added up as NCCL would in half precision.

For any number of ranks up to 16,384.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from isobatch.validate.proofs.all_reduce import ROW, Pattern, sums, values

RANKS = [1, 2, 3, 8, 64, 65, 100, 320, 512, 1000, 1024, 4096, 16_384]


def addends(ranks, dtype):
    """What each rank sends, shape (ranks, elements)."""
    return torch.from_numpy(np.stack([values(rank, ranks) for rank in range(ranks)])).to(dtype)


def ring(found):
    """Each addend to the sum so far, rounded at every step."""
    total = found[0].clone()
    for one in found[1:]:
        total += one
    return total


def tree(found):
    """Pairs, and pairs of pairs."""
    while len(found) > 1:
        even = found[: len(found) // 2 * 2]
        found = torch.cat([even[0::2] + even[1::2], found[len(even) :]])
    return found[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ranks", RANKS)
def test_no_order_of_adding_rounds(ranks, dtype):
    found = addends(ranks, dtype)
    expected = sums(ranks)
    for added in ring(found), tree(found), ring(found.flip(0)):
        assert np.array_equal(added.double().numpy(), expected)


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


def test_a_pattern_goes_on_over_its_rows():
    buffer = torch.empty(3 * ROW + 5)
    Pattern(1, 2, torch.float32, torch.device("cpu")).fill(buffer)
    assert torch.equal(buffer, torch.tensor([1.0, 2.0, 0.0]).repeat(ROW + 2)[: len(buffer)])


def test_a_pattern_takes_no_room_of_its_own():
    pattern = Pattern(5, 512, torch.float32, torch.device("cpu"))
    assert sum(tensor.numel() for tensor in vars(pattern).values()) < 3 * ROW
