"""Weights of samples become a cause by name."""

import numpy as np
import pytest

from isobatch.equivalence.causes import (
    PassSamples,
    Share,
    Weighing,
    explain_factor,
    name_factors,
    name_weights,
)
from isobatch.equivalence.laws import Cause
from isobatch.equivalence.split import Split

TOKENS = [(10, 12), (30, 32), (5, 7), (15, 17)]
"""By pass, tokens after and before the shift."""
MEANS = np.repeat([15 / after for after, _ in TOKENS], 2)
"""Weights of two samples a pass in a mean of the passes' means."""
PASSES = Split(1, 4, 2)


def weighing(split: Split, weights, passes=None, tokens=lambda rank, number: (10, 11)) -> Weighing:
    counts = passes or [split.accumulation] * split.ranks
    places = [(rank, number) for rank, count in enumerate(counts) for number in range(count)]
    listed = [
        [PassSamples([], list(tokens(rank, n))) for n in range(count)] for rank, count in enumerate(counts)
    ]
    owners = [place for place in places for _ in range(split.micro_batch)]
    return Weighing(split, np.array(weights, dtype=float), owners, listed)


def named(*args, **kwargs) -> tuple[str, str]:
    cause = name_weights(weighing(*args, **kwargs))
    assert cause.remedy
    return cause.name, cause.text


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
    assert named(Split(2, 3, 5), [factor] * 30)[0] == name


def test_weights_of_one_have_no_cause():
    assert name_weights(weighing(Split(2, 3, 5), [1.0005] * 30)) is None


def test_a_short_window_is_told_from_a_factor():
    assert named(PASSES, [0.5] * 4, passes=[2])[0] == "short window"


def test_a_sample_without_a_gradient_is_in_no_mean():
    """Masks leave the second sample of each pass, and the last pass, without a label."""
    tokens = [(3, 3), (2, 2), (4, 4), (0, 0)]
    known = np.array([True, False] * 3 + [False] * 2)
    weights = np.where(known, np.repeat([9 / 3, 9 / 2, 9 / 4, 1], 2), 3.25)
    passes = weighing(PASSES, weights, tokens=lambda rank, number: tokens[number])
    assert name_weights(passes).name == "unequal weights"
    cause = name_weights(passes.only(known))
    assert cause.name == "mean of passes' means" and "4 × all of it (× accumulation)" in cause.text


def test_a_mean_of_means_is_seen_by_the_tokens():
    name, text = named(PASSES, MEANS, tokens=lambda _, number: TOKENS[number])
    assert name == "mean of passes' means" and "1/tokens" in text and "×" not in text
    _, text = named(PASSES, 4 * MEANS, tokens=lambda _, number: TOKENS[number])
    assert "4 × all of it (× accumulation)" in text
    ranks = [20 / tokens for tokens in (10, 30) for _ in range(6)]
    name, _ = named(Split(2, 3, 2), ranks, tokens=lambda rank, _: TOKENS[rank])
    assert name == "mean of ranks' means"
    name, text = named(PASSES, MEANS, tokens=lambda *_: ())
    assert name == "mean of passes' means" and "each pass has a mean of its own" in text


def test_labels_counted_before_the_shift_are_named():
    weights = np.repeat([before / after for after, before in TOKENS], 2)
    name, _ = named(PASSES, weights, tokens=lambda _, number: TOKENS[number])
    assert name == "tokens counted before the shift"


@pytest.mark.parametrize(
    ("weights", "name", "text"),
    [
        ([0, 0, 0, 0, 0, 0, 1, 1], "lost passes", "of passes 1, 2, 3 of 4 have weight 0"),
        ([0, 0, 1, 1, 1, 1, 0, 1], "lost samples", "3 of 8"),
        ([1, 2, 1, 1, 1, 1, 1, 1], "repeated samples", "1 of 8 samples weigh 2 times"),
        ([1, 1.3, 0.7, 1, 1, 1.1, 1, 1], "unequal weights", "from 0.7 to 1.3"),
    ],
)
def test_lost_and_repeated_samples_are_counted(weights, name, text):
    cause_name, cause_text = named(PASSES, weights)
    assert cause_name == name and text in cause_text


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (lambda split: split.accumulation, "× accumulation"),
        (lambda split: split.ranks, "× ranks"),
        (lambda split: split.micro_batch / 8, "summed loss"),
        (lambda split: 1.0, None),
        (lambda split: split.ranks**0.5, None),
    ],
)
def test_several_splits_leave_one_law(size, name):
    cause = name_factors({split: size(split) for split in (Split(2, 2, 2), PASSES, Split(2, 1, 4))})
    assert (cause and cause.name) == name


SHARE = Share(ranks=2, accumulation=3, micro_batch=8)


@pytest.mark.parametrize(
    ("ratio", "causes"),
    [
        (8, [Cause.SUMMED_LOSS]),
        (3, [Cause.NOT_DIVIDED]),
        (2, [Cause.SUMMED_OVER_RANKS]),
        (24, [Cause.SUMMED_LOSS, Cause.NOT_DIVIDED]),
        (48, [Cause.SUMMED_LOSS, Cause.MULTIPLIED_BY_BOTH]),
        (6, [Cause.MULTIPLIED_BY_BOTH]),
        (3 / 2, [Cause.ACCUMULATION_OVER_RANKS]),
        (1 / 2, [Cause.DIVIDED_BY_RANKS]),
        (1 / 3, [Cause.DIVIDED_TWICE]),
    ],
)
def test_a_factor_names_its_faults(ratio, causes):
    diagnosis = explain_factor(ratio, SHARE)
    assert list(diagnosis.causes) == causes
    assert diagnosis.text.endswith(f"({ratio:.4g}×)")


def test_factors_that_coincide_are_both_named():
    diagnosis = explain_factor(2, Share(ranks=2, accumulation=2, micro_batch=8))
    assert set(diagnosis.causes) == {Cause.NOT_DIVIDED, Cause.SUMMED_OVER_RANKS}
    assert ", or " in diagnosis.text


def test_a_factor_of_nothing_known_has_no_diagnosis():
    assert explain_factor(5.5, SHARE) is None
