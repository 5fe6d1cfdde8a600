"""optimize_goodput against every split, and against AdaptDL."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isobatch as ib
from isobatch.forecast.goodput import optimize_goodput
from pairs import adaptdl_function, ours, random_pairs
from peers import adaptdl_goodput
from reference.goodput import goodput, optimize

seconds = st.floats(1e-5, 2)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "replicas": st.integers(1, 6),
            "tuned_batch": st.integers(1, 200),
            "noise_scale": st.just(0.0) | st.floats(0.1, 1e5),
            "compute_constant": st.one_of(st.just(0.0), seconds),
            "compute_per_sample": st.floats(1e-5, 0.1),
            "compute_floor": st.one_of(st.just(0.0), seconds),
            "sync_seconds": st.one_of(st.just(0.0), seconds),
            "overlap": st.floats(1, 10),
            "lead": st.one_of(st.just(0.0), st.floats(0, 1)),
            "update_seconds": st.one_of(st.just(0.0), seconds),
            "max_batch": st.integers(1, 300),
            "max_micro_batch": st.integers(1, 64),
        }
    )
)
def test_as_good_as_every_split(pair):
    best, _, _ = optimize(pair)
    optimum = {name: column[0] for name, column in optimize_goodput(**pair).items()}
    if best == 0:
        assert optimum["micro_batch"] == optimum["effective_batch"] == -1
        assert np.isnan(optimum["goodput"])
        assert np.isnan(optimum["samples_per_second"])
    else:
        assert pair["tuned_batch"] <= optimum["effective_batch"] <= pair["max_batch"]
        assert optimum["micro_batch"] <= pair["max_micro_batch"]
        assert goodput(pair, optimum["micro_batch"], optimum["accumulation"]) >= best * (1 - 1e-12)
        assert optimum["goodput"] == pytest.approx(best, rel=1e-12)
        assert optimum["samples_per_second"] * optimum["statistical_efficiency"] == pytest.approx(best)


@pytest.mark.peers
def test_never_worse_than_adaptdl_on_ten_thousand_pairs():
    adaptdl = adaptdl_goodput()
    pairs = random_pairs(10_000, seed=1)
    optimum = optimize_goodput(**ours(pairs))
    assert (optimum["effective_batch"] <= pairs["max_batch"]).all()
    over = better = compared = 0
    for row in range(len(pairs["nodes"])):
        function = adaptdl_function(adaptdl, pairs, row)
        place = int(pairs["nodes"][row]), int(pairs["replicas"][row])
        goodput, micro, accumulated = function.optimize(
            *place, int(pairs["max_batch"][row]), (1, int(pairs["max_micro_batch"][row])), accumulation=True
        )
        batch = place[1] * micro * (accumulated + 1)
        if batch > pairs["max_batch"][row]:
            over += 1
        elif goodput > 0:
            compared += 1
            assert optimum["goodput"][row] >= goodput * (1 - 1e-9), row
            better += optimum["goodput"][row] > goodput * (1 + 1e-9)
        if optimum["micro_batch"][row] > 0:
            split = int(optimum["micro_batch"][row]), int(optimum["accumulation"][row]) - 1
            assert optimum["goodput"][row] == pytest.approx(float(function(*place, *split)), rel=1e-9)
    assert compared > 5000
    assert better > compared / 5
    assert over > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_scale": -1}, "noise_scale must be 0 or more samples, got -1.0"),
        ({"noise_scale": [1, float("nan")]}, "row 2: noise_scale must be 0 or more samples, got nan"),
        ({"compute_constant": -1}, "compute_constant must be "),
        ({"compute_per_sample": 0}, "compute_per_sample must be "),
        ({"sync_seconds": float("inf")}, "sync_seconds must be "),
        ({"overlap": 0.5}, "overlap must be a number from 1 to 10, got 0.5"),
        ({"lead": 1.5}, "lead must be a share from 0 to 1, got 1.5"),
        ({"replicas": 0}, "replicas must be a whole number from 1 to"),
        ({"max_batch": 1.5}, "max_batch must be a whole number"),
        ({"replicas": [1, 2], "tuned_batch": [1, 2, 3]}, "replicas must have 1 or 3 values, got 2"),
    ],
)
def test_bad_input_is_named(change, message):
    good = {
        "replicas": 4,
        "tuned_batch": 64,
        "max_batch": 512,
        "noise_scale": 100.0,
        "compute_constant": 0.1,
        "compute_per_sample": 0.01,
        "sync_seconds": 0.1,
    }
    with pytest.raises(ib.InputError) as error:
        optimize_goodput(**good | change)
    assert message in str(error.value)
