"""Weights of samples become a cause by name."""

import numpy as np
import pytest

from isobatch.equivalence.causes import PassSamples, Weighing, name_factors, name_weights
from isobatch.equivalence.split import Split

TOKENS = {1: (10, 12), 2: (30, 32), 3: (5, 7), 4: (15, 17)}
"""By part, tokens after and before the shift."""


def weighing(split: Split, weights, passes=None, tokens=lambda rank, number: (10, 11)) -> Weighing:
    counts = passes or [split.accumulation] * split.ranks
    listed = [
        [PassSamples([], list(tokens(rank, number))) for number in range(count)]
        for rank, count in enumerate(counts)
    ]
    owners = [
        (rank, number)
        for rank, count in enumerate(counts)
        for number in range(count)
        for _ in range(split.micro_batch)
    ]
    return Weighing(split, np.array(weights, dtype=float), owners, listed)


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (3, "× accumulation"),
        (1 / 3, "1/accumulation"),
        (2, "× ranks"),
        (1 / 2, "1/ranks"),
        (6, "× ranks × accumulation"),
        (1 / 6, "summed loss"),
        (3 / 2, "accumulation/ranks"),
        (2 / 3, "ranks/accumulation"),
        (1.7, "one factor"),
    ],
)
def test_one_factor_for_all_is_named_by_the_split(factor, name):
    cause = name_weights(weighing(Split(2, 3, 5), [factor] * 30))
    assert cause is not None and cause.name == name
    assert cause.mend


def test_weights_of_one_have_no_cause():
    assert name_weights(weighing(Split(2, 3, 5), [1.0005] * 30)) is None


def test_a_short_window_is_told_from_a_factor():
    cause = name_weights(weighing(Split(1, 4, 2), [0.5] * 4, passes=[2]))
    assert cause is not None and cause.name == "short window"


def test_a_sample_without_a_gradient_is_in_no_mean():
    """Masks leave the second sample of each pass, and the last pass, without a label."""
    tokens = [(3, 3), (2, 2), (4, 4), (0, 0)]
    known = np.array([True, False] * 3 + [False] * 2)
    weights = np.where(known, np.repeat([9 / 3, 9 / 2, 9 / 4, 1], 2), 3.25)
    passes = weighing(Split(1, 4, 2), weights, tokens=lambda rank, number: tokens[number])
    assert name_weights(passes).name == "unequal weights"
    cause = name_weights(passes.only(known))
    assert cause.name == "mean of passes' means" and "4 × all of it (× accumulation)" in cause.text


def test_a_mean_of_the_passes_means_is_seen_by_the_tokens():
    tokens = {number: TOKENS[number + 1] for number in range(4)}
    mean = sum(count[0] for count in tokens.values()) / 4
    weights = [mean / tokens[number][0] for number in range(4) for _ in range(2)]
    cause = name_weights(weighing(Split(1, 4, 2), weights, tokens=lambda _, number: tokens[number]))
    assert cause is not None and cause.name == "mean of passes' means"
    assert "1/tokens" in cause.text and "×" not in cause.text
    cause = name_weights(
        weighing(Split(1, 4, 2), np.array(weights) * 4, tokens=lambda _, number: tokens[number])
    )
    assert cause is not None and "4 × all of it (× accumulation)" in cause.text


def test_a_mean_of_the_ranks_means_is_told_from_that_of_the_passes():
    tokens = {0: (10, 11), 1: (30, 31)}
    weights = [20 / tokens[rank][0] for rank in range(2) for _ in range(6)]
    cause = name_weights(weighing(Split(2, 3, 2), weights, tokens=lambda rank, _: tokens[rank]))
    assert cause is not None and cause.name == "mean of 2 ranks' means"


def test_labels_counted_before_the_shift_are_named():
    weights = [TOKENS[number + 1][1] / TOKENS[number + 1][0] for number in range(4) for _ in range(2)]
    cause = name_weights(weighing(Split(1, 4, 2), weights, tokens=lambda _, number: TOKENS[number + 1]))
    assert cause is not None and cause.name == "tokens counted before the shift"


def test_lost_and_repeated_samples_are_counted():
    lost = name_weights(weighing(Split(1, 4, 2), [0, 0, 0, 0, 0, 0, 1, 1]))
    assert lost is not None and lost.name == "lost samples" and "6 of 8" in lost.text
    repeated = name_weights(weighing(Split(1, 4, 2), [1, 2, 1, 1, 1, 1, 1, 1]))
    assert (
        repeated is not None
        and repeated.name == "repeated samples"
        and "1 of 8 samples weigh 2 times" in repeated.text
    )
    unequal = name_weights(weighing(Split(1, 4, 2), [1, 1.3, 0.7, 1, 1, 1.1, 1, 1]))
    assert unequal is not None and unequal.name == "unequal weights"


def test_several_splits_leave_one_law():
    def factors(size):
        return {split: size(split) for split in (Split(2, 2, 2), Split(1, 4, 2), Split(2, 1, 4))}

    assert name_factors(factors(lambda split: split.accumulation)).name == "× accumulation"
    assert name_factors(factors(lambda split: split.ranks)).name == "× ranks"
    assert name_factors(factors(lambda split: split.micro_batch / 8)).name == "summed loss"
    assert name_factors(factors(lambda split: 1.0)) is None
    assert name_factors(factors(lambda split: split.ranks**0.5)) is None
    assert name_factors({}) is None
