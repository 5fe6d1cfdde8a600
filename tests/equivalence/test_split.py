"""The splits of a batch, and the choice of those to compare."""

import pytest

from isobatch.equivalence.split import MAX_RANKS, Split, ambiguity, choose_splits, shrink
from isobatch.errors import InputError


@pytest.mark.parametrize("text", ["2x2x2", " 2X2x2 ", "2×2×2"])
def test_a_split_is_read_as_it_is_written(text):
    assert Split.parse(text) == Split(2, 2, 2)
    assert str(Split.parse(text)) == "2x2x2"


@pytest.mark.parametrize(
    "text", ["", "2x2", "2x2x2x2", "2x0x2", "-1x2x2", "2.5x1x1", "axbxc", "2x2x2 samples"]
)
def test_a_bad_split_is_refused_with_its_form(text):
    with pytest.raises(
        InputError, match="--split must be RANKSxACCUMULATIONxMICRO_BATCH, such as 2x2x2, got"
    ):
        Split.parse(text)


def every_split(most=32):
    numbers = range(1, most + 1)
    return [Split(r, a, m) for r in (1, 2, 3, 4) for a in numbers for m in numbers if 1 < r * a * m <= most]


def test_every_choice_has_the_same_batch_and_none_twice():
    for requested in every_split():
        splits = choose_splits(requested)
        batch = requested.effective_batch
        assert splits.requested == requested
        assert splits.whole == Split(1, 1, batch)
        assert splits.single == Split(1, batch, 1)
        assert all(split.effective_batch == batch and split.ranks <= MAX_RANKS for split in splits.others)
        assert len({*splits.others, *splits[:3]}) == len(splits.others) + len({*splits[:3]})


def test_each_cause_has_a_split_of_its_own():
    ranks_only, passes_only = Split(2, 1, 4), Split(1, 4, 2)
    assert choose_splits(Split(2, 2, 2)).others == (passes_only, ranks_only)
    assert choose_splits(passes_only).others == (ranks_only, Split(2, 2, 2))
    assert choose_splits(Split(1, 1, 8)).others == (passes_only, ranks_only, Split(2, 2, 2))


def test_unequal_factors_are_preferred():
    *_, both = choose_splits(Split(1, 1, 24)).others
    assert ambiguity(both) == 0 == ambiguity(Split(2, 4, 3))
    assert ambiguity(Split(2, 2, 2)) == 2


def test_a_unit_stays_whole():
    splits = choose_splits(Split(2, 2, 2), unit=2)
    assert splits.single == Split(1, 4, 2)
    assert all(split.micro_batch % 2 == 0 for split in splits.others)
    with pytest.raises(InputError, match="not a multiple of the unit 2: use 2x2x2"):
        choose_splits(Split(2, 2, 3), unit=2)
    with pytest.raises(InputError, match="a batch of 2 cannot be split"):
        choose_splits(Split(1, 1, 2), unit=2)


def test_a_batch_shrinks_in_the_same_shape():
    for requested in [
        Split(8, 4, 16),
        Split(2, 4, 64),
        Split(1, 64, 2),
        Split(4, 1, 128),
        Split(1, 1, 4096),
        Split(16, 16, 1),
    ]:
        small = shrink(requested)
        assert small.effective_batch <= 16
        assert small.ranks <= MAX_RANKS
        for before, after in zip(
            (requested.ranks, requested.accumulation), (small.ranks, small.accumulation), strict=True
        ):
            assert (after > 1) == (before > 1)
        assert (small.micro_batch > 1) == (requested.micro_batch > 1)


def test_a_batch_that_fits_stays():
    assert shrink(Split(2, 2, 4)) == Split(2, 2, 4)
    assert shrink(Split(2, 4, 3), limit=24) == Split(2, 4, 3)
    assert shrink(Split(2, 4, 32)) == Split(2, 4, 2)  # ranks and accumulation as asked
    assert shrink(Split(2, 2, 32), unit=4).micro_batch == 4
