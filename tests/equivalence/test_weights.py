"""Weights by least squares over linear sketches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isobatch.equivalence.likeness import Likeness  # noqa: E402
from isobatch.equivalence.recorder.isobatch_recorder.sketch import sketch  # noqa: E402
from isobatch.equivalence.weights import distance, solve  # noqa: E402
from isobatch.limits import within  # noqa: E402


@pytest.mark.parametrize("shape", [(), (3,), (7, 5), (300, 400), (70_000,), (3, 65_521)])
def test_a_sketch_is_linear_and_bounded(shape):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    first, second, both = (sketch(5, tensor, 64) for tensor in (a, b, 3 * a - b))
    assert len(first) == min(64, a.numel())
    torch.testing.assert_close(both, 3 * first - second, rtol=1e-5, atol=1e-4)
    assert not torch.equal(first, sketch(6, a, 64)) or a.numel() == 1


def test_a_sketch_has_every_entry():
    tensor = torch.zeros(200_000)
    for place in (0, 65_520, 65_521, 131_042, 199_999):
        tensor.zero_()
        tensor[place] = 2.0
        assert sketch(1, tensor, 64).abs().sum() == 2.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.integers(0, 2**31))
def test_the_weights_of_samples_come_back(weights, seed):
    changes = np.random.default_rng(seed).normal(size=(len(weights), 200))
    solution = solve(changes, np.array(weights) @ changes)
    assert solution is not None
    np.testing.assert_allclose(solution.weights, weights, atol=1e-9)
    assert solution.residual < 1e-9 or not any(weights)


def test_a_part_that_no_weights_explain_is_a_residual():
    changes = np.eye(3, 10)
    gradient = changes.sum(0)
    gradient[9] = 3.0
    solution = solve(changes, gradient)
    assert solution is not None and solution.residual == pytest.approx(np.sqrt(9 / 12))


NEAR = np.ones((2, 8)) + np.array([[0], [1e-6]]) * np.eye(2, 8)  # apart by what float32 cannot tell


@pytest.mark.parametrize("changes", [np.ones((2, 5)), np.zeros((2, 5)), np.full((1, 5), np.nan), NEAR])
def test_samples_that_do_not_stand_apart_have_no_weights(changes):
    assert solve(changes, changes.sum(0)) is None


def test_a_distance_to_nothing_is_infinite():
    assert distance(np.ones(2), np.zeros(2)) == np.inf
    assert distance(np.zeros(2), np.zeros(2)) == 0


def test_a_sample_without_a_gradient_weighs_as_the_others():
    changes = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert solve(changes, 4 * changes.sum(0)).weights == pytest.approx([4.0] * 3)


def test_a_likeness_adds_up_and_no_nan_passes():
    generator = np.random.default_rng(0)
    own, reference = generator.normal(size=(2, 64))
    halves = [Likeness.of(own[part], reference[part]) for part in (slice(0, 20), slice(20, 64))]
    whole = Likeness(*map(sum, zip(*halves, strict=True)))
    assert whole.error == pytest.approx(np.linalg.norm(own - reference) / np.linalg.norm(reference))
    assert Likeness.of(3 * reference, reference).residual == pytest.approx(0, abs=1e-7)
    broken = Likeness.of(own * np.nan, reference)
    assert not any(within(value, 1e9) for value in (broken.error, broken.ratio, broken.residual))


def test_a_likeness_leaves_out_what_lies_along_a_vector():
    own, reference, weights = np.array([1.0, 2.0]), np.array([1.0, 0.0]), np.array([0.0, 5.0])
    like = Likeness.of(own, reference).without(own @ weights, reference @ weights, weights @ weights)
    assert (like.own, like.along, like.reference) == pytest.approx((1.0, 1.0, 1.0))
