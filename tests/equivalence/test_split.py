"""The splits of a batch, and the choice of those to compare."""

import pytest

from isobatch.equivalence.split import MAX_RANKS, Split, ambiguity, choose_splits, shrink
from isobatch.errors import InputError


@pytest.mark.parametrize("text", ["2x2x2", " 2X2x2 ", "2×2×2"])
def test_a_split_is_read_as_it_is_written(text):
    assert Split.parse(text) == Split(2, 2, 2)


@pytest.mark.parametrize(
    "text", ["", "2x2", "2x2x2x2", "2x0x2", "-1x2x2", "2.5x1x1", "axbxc", "2x2x2 samples"]
)
def test_a_bad_split_is_refused_with_its_form(text):
    expected = "--split must be RANKSxACCUMULATIONxMICRO_BATCH, such as 2x2x2, got"
    with pytest.raises(InputError, match=expected):
        Split.parse(text)


def every_split(most=32):
    numbers = range(1, most + 1)
    return [Split(r, a, m) for r in (1, 2, 3, 4) for a in numbers for m in numbers if 1 < r * a * m <= most]


def test_every_choice_has_the_same_batch_and_none_twice():
    for requested in every_split():
        splits = choose_splits(requested)
        batch = requested.effective_batch
        assert (splits.whole, splits.single) == (Split(1, 1, batch), Split(1, batch, 1))
        assert all(split.effective_batch == batch and split.ranks <= MAX_RANKS for split in splits.further)
        fixed = {requested, splits.whole, splits.single}
        assert len({*splits.further, *fixed}) == len(splits.further) + len(fixed)
    with pytest.raises(InputError, match="a batch of 1 cannot be split"):
        choose_splits(Split(1, 1, 1))


def test_each_cause_has_a_split_of_its_own():
    ranks_only, passes_only = Split(2, 1, 4), Split(1, 4, 2)
    assert choose_splits(Split(2, 2, 2)).further == (passes_only, ranks_only)
    assert choose_splits(passes_only).further == (ranks_only, Split(2, 2, 2))
    assert choose_splits(Split(1, 1, 8)).further == (passes_only, ranks_only, Split(2, 2, 2))


def test_unequal_factors_are_preferred():
    *_, both = choose_splits(Split(1, 1, 24)).further
    assert ambiguity(both) == 0


@pytest.mark.parametrize(
    "requested",
    [(8, 4, 16), (2, 4, 64), (1, 64, 2), (4, 1, 128), (1, 1, 4096), (16, 16, 1)],
)
def test_a_batch_shrinks_in_the_same_shape(requested):
    requested = Split(*requested)
    small = shrink(requested)
    assert small.effective_batch <= 16 and small.ranks <= MAX_RANKS
    for factor in ("ranks", "accumulation", "micro_batch"):
        assert (getattr(small, factor) > 1) == (getattr(requested, factor) > 1)


def test_a_batch_that_fits_stays():
    assert shrink(Split(2, 2, 4)) == Split(2, 2, 4)
    assert shrink(Split(2, 4, 32)) == Split(2, 4, 2)  # ranks and accumulation as typed
