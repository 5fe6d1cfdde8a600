"""Splits beside the reference, on invented recordings: nothing is started."""

import msgspec
import numpy as np
import pytest

from isobatch.equivalence.causes import SplitCause
from isobatch.equivalence.compare import OTHER_SAMPLES, Comparison
from isobatch.equivalence.records import RankStep, RecordedStep, Recording
from isobatch.equivalence.session import _not_comparable, _part_results
from isobatch.equivalence.split import Split

SAMPLES = np.random.default_rng(0).normal(size=(16, 32))
"""The gradient of each sample."""
STEP = {
    **{"optimizer": 0, "step": 0, "kind": "SGD", "groups": [{"lr": 0.1}], "half": False, "seconds": 1.0},
    **{"names": ["weight"], "sizes": [32], "entries": [32], "own": [True]},
    **{"drawn": [], "notes": {}, "versions": {}},
}
"""What every rank records."""


def recording(
    text: str, *, factor=1.0, averaged=True, samples=range(8), norms=((1.0, 9.0),), each_pass=False
) -> Recording:
    """A run of a split; each rank has its part of the samples, hashed by their numbers."""
    split = Split.parse(text)
    shares = np.array_split(np.array(samples), split.ranks)
    gradients = factor * np.stack([SAMPLES[share].mean(0) for share in shares])
    if averaged:
        gradients[:] = gradients.mean(0)
    ranks = []
    for rank, share in enumerate(shares):
        parts = np.array_split(share, split.accumulation)
        passes = [{"hashes": list(map(str, part)), "tokens": []} for part in parts]
        record = {"rank": rank, "world": split.ranks, "passes": passes, "norms": norms}
        ranks.append(msgspec.convert(STEP | record, RankStep))
    changes = SAMPLES[:8] / 8 if each_pass else np.empty((0, 32))
    return Recording(
        split, 1.0, {(0, 0): RecordedStep(ranks, gradients, np.ones((split.ranks, 32)), changes)}
    )


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(recording("1x1x8"), recording("1x8x1", each_pass=True), 0.0)


def names(result) -> list[str]:
    return [cause.name for cause in result.causes]


def test_a_split_of_the_same_samples_is_the_same(comparison):
    assert comparison.compare(recording("2x2x2")).same


def test_ranks_whose_gradients_are_not_averaged_lose_no_samples(comparison):
    result = comparison.compare(recording("2x2x2", averaged=False, norms=((1.7, 9.0),)))
    assert names(result) == ["gradients not averaged"]
    assert result.weights == pytest.approx([1.0] * 8)


def test_a_split_that_draws_not_comparable_is_not_judged(comparison):
    result = comparison.compare(recording("2x2x2", samples=range(2, 10)))
    assert names(result) == [OTHER_SAMPLES] and not result.same
    judged, unasked = _part_results([result, comparison.compare(recording("1x4x2"))])
    assert [result.split for result in judged] == ["1x4x2"] and list(unasked) == ["2x2x2"]
    error = str(_not_comparable(unasked, judged))
    assert "2x2x2 cannot be compared" in error and "1x4x2: the same training" in error


def test_a_split_with_other_random_draws_is_not_judged(comparison):
    result = comparison.compare(recording("1x4x2"))
    draws = SplitCause(
        "randomness", "random draws of torch fall on other samples", "seed each sample's own draw"
    )
    rate = SplitCause("learning rate", "another", "mend")
    random, both = (msgspec.structs.replace(result, causes=causes) for causes in ([draws], [draws, rate]))
    judged, unjudged = _part_results([random, both])
    assert judged == [both] and unjudged == {"1x4x2": draws}
    assert "seed each sample's own draw" in str(_not_comparable(unjudged, []))


def test_another_batch_has_no_other_cause(comparison):
    assert names(comparison.compare(recording("1x4x2", samples=range(6)))) == ["another batch"]


def test_a_multiple_of_the_gradient_is_named_without_the_gradients_of_samples():
    result = Comparison(recording("1x1x8"), None, 0.0).compare(recording("1x4x2", factor=4.0))
    assert names(result) == ["× accumulation"]
