"""The critical batch and the learning rate's exponent on MLPerf's reference convergence points.

The points are those of mlcommons/logging, mlperf_logging/rcp_checker: batch, and the mean over seeds of the samples
(or epochs, or tokens, for which the batch at which they meet is the same) until the target was reached.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isobatch as ib
from isobatch.forecast.critical import _t

LLAMA_405B = ([1152, 2304, 4608], [313344, 368640, 488448])
LLAMA_8B = ([16, 32, 64, 96, 128], [161587.2, 178790.4, 226099.2, 277876.8, 343449.6])
GPT3 = ([1536, 2048, 3072, 4096, 8192], [1199570944, 1182793728, 1216348160, 1266679808, 1627389952])
RESNET = (
    [1632, 3264, 4096, 8192, 13056, 32768, 49152, 58880, 65536, 67840],
    [34.9, 35.3, 40.0, 42.0, 45.4, 56.0, 68.0, 79.8, 84.5, 85.9],
)


def test_llama_405b_predicts_its_own_third_batch():
    two = ib.fit_critical_batch(LLAMA_405B[0][:2], LLAMA_405B[1][:2])
    assert two.critical_batch == pytest.approx(5376)
    assert two.samples(4608) == pytest.approx(488448, rel=0.019)
    assert two.interval is None
    three = ib.fit_critical_batch(*LLAMA_405B)
    assert three.interval[0] < three.critical_batch < three.interval[1]
    assert two.critical_batch == pytest.approx(three.critical_batch, rel=0.1)


@pytest.mark.parametrize(("table", "within"), [(LLAMA_8B, 0.04), (GPT3, 0.035), (RESNET, 0.07)])
def test_other_tables_lie_on_the_hyperbola(table, within):
    fit = ib.fit_critical_batch(*table)
    assert fit.scatter < within
    low, high = fit.interval
    assert table[0][0] < low < fit.critical_batch < high < np.inf
    assert fit.steps(table[0]) * table[0] == pytest.approx(fit.samples(table[0]))


def test_the_peak_lr_of_llama_405b_is_linear_in_the_batch():
    fit = ib.fit_power(LLAMA_405B[0], [8e-5, 1.6e-4, 3.2e-4])
    assert fit.exponent == pytest.approx(1.0, abs=1e-12)
    assert fit.lr(9216) == pytest.approx(6.4e-4)


@given(
    st.floats(100, 1e6),
    st.floats(1, 1e4),
    st.lists(st.integers(1, 100_000), min_size=2, max_size=8, unique=True),
)
def test_exact_runs_give_their_own_curve_back(least, steps, batches):
    fit = ib.fit_critical_batch(batches, [least + steps * b for b in batches])
    assert fit.samples(batches) == pytest.approx([least + steps * b for b in batches], rel=1e-6)


def test_the_interval_holds_the_truth_19_times_of_20():
    rng = np.random.default_rng(0)
    batches = np.array([64, 256, 1024, 4096, 16384.0])
    held = 0
    for _ in range(1000):
        samples = (1e6 + 500 * batches) * (1 + 0.03 * rng.standard_normal(5))
        low, high = ib.fit_critical_batch(batches, samples).interval
        held += low <= 2000 <= high
    assert 925 <= held <= 975


def test_an_interval_without_an_upper_end():
    assert ib.fit_critical_batch([100, 200, 300], [1000, 1100, 1030]).interval[1] == np.inf


def test_an_optimum_inside_the_range_is_said_and_left_out():
    """With it the fit gave 6,898 and an interval from 0 to infinity, without a word."""
    found = ib.fit_critical_batch([64, 128, 256, 512, 1024], [10, 8.2, 7.5, 8, 10.1])
    rising = ib.fit_critical_batch([256, 512, 1024], [7.5, 8, 10.1])
    assert "lowest at batch 256" in found.caution
    assert (found.critical_batch, found.interval) == (rising.critical_batch, rising.interval)
    assert 1000 < found.critical_batch < 3000
    # Scatter is no optimum, and a rising curve has none.
    assert ib.fit_critical_batch([100, 200, 400], [1000, 980, 1300]).caution is None
    assert rising.caution is None


def test_weights_count_as_repeated_runs():
    twice = ib.fit_critical_batch([1, 1, 2, 4], [10, 10, 13, 17])
    weighted = ib.fit_critical_batch([1, 2, 4], [10, 13, 17], weights=[2, 1, 1])
    assert weighted.critical_batch == pytest.approx(twice.critical_batch)


def test_students_t():
    stats = pytest.importorskip("scipy.stats", reason="compares quantiles with SciPy")
    for freedom in (1, 2, 5, 10, 11, 15, 30, 100):
        assert _t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-4)


@pytest.mark.parametrize(
    ("batch", "samples", "said"),
    [
        ([100], [1000], "batch must have at least two different batches"),
        ([100, 100], [1000, 1100], "batch must have at least two different batches"),
        ([100, 200], [1000], "samples_to_target must have 2 values, as batch has, got 1"),
        ([100, 200], [1000, -5], "row 2: samples_to_target must be"),
        ([100, 0], [1000, 1100], "row 2: batch must be"),
        ([100, 200], [1100, 1000], "falls as the batch grows"),
        ([100, 200], [1000, 2500], "grows faster than the batch"),
    ],
)
def test_bad_runs_are_said(batch, samples, said):
    with pytest.raises(ib.InputError) as error:
        ib.fit_critical_batch(batch, samples)
    assert said in str(error.value)
