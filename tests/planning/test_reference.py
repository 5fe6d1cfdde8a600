"""The oracles against one another: the measure of the core is itself beyond doubt."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import bulk, plan, ramp, split, steps


@given(st.integers(1, 3000), st.integers(1, 40), st.none() | st.integers(1, 300), st.sampled_from([1, 2, 8]))
def test_a_split_is_the_largest_that_works(batch, replicas, cap, multiple):
    tried = [
        (micro, batch // replicas // micro)
        for micro in range(1, batch // replicas + 1)
        if micro * (batch // replicas // micro) * replicas == batch
        and (cap is None or micro <= cap)
        and micro % multiple == 0
    ]
    assert split.split(batch, replicas, cap, multiple) == (tried[-1] if tried else None)


@given(
    st.integers(1, 200),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from([False, True, "sampler", "loader"]),
)
def test_an_epoch_in_closed_form_is_the_one_that_was_walked(
    dataset, replicas, micro, accumulation, drop_last
):
    shape = (dataset, replicas, micro, accumulation, drop_last)
    assert steps.epoch(*shape) == steps.walk(*shape)


@given(st.integers(1, 500), st.integers(1, 20), st.none() | st.integers(1, 64))
def test_ragged_sizes_hold_the_batch_and_the_cap(batch, replicas, cap):
    sizes = split.ragged(batch, replicas, cap)
    if batch < replicas:
        assert sizes is None
        return
    shares = [sum(rank) for rank in sizes]
    assert sum(shares) == batch
    assert max(shares) - min(shares) <= 1
    assert cap is None or max(map(max, sizes)) <= cap
    weights = split.loss_weights(sizes)
    # A mean over replicas of weighted mean losses gives every sample the weight 1/batch.
    assert all(
        w / n == 1 / batch * replicas or w * batch == n * replicas
        for rank, ws in zip(sizes, weights, strict=True)
        for n, w in zip(rank, ws, strict=True)
    )


def test_the_ramps_of_bloom():
    assert ramp.run("192 16 9765625", 2048, 220_000_000) == (115_311, 219_999_152)
    assert ramp.run("16 16 9765625", 2048, 220_000_000)[0] == 128_728
    assert ramp.run("192 16 9765625", 2048, 220_000_000, floored=False)[0] == 115_312


@pytest.mark.parametrize("policy", ["keep", "grow", 4096])
@pytest.mark.parametrize("cap", [None, 24])
def test_bulk_is_the_row_by_row_oracle(policy, cap):
    draw = random.Random(0)
    jobs = []
    for _ in range(40):
        gpus, micro, accumulation = (
            draw.choice([1, 4, 7, 8]),
            draw.choice([1, 12, 32, 50]),
            draw.choice([1, 2, 3]),
        )
        jobs.append(
            {
                "effective_batch": gpus * micro * accumulation,
                "lr": draw.choice([0.1, 3e-4]),
                "optimizer": draw.choice(["sgd", "adam"]),
                "gpus": gpus,
                "micro_batch": micro,
                "accumulation": accumulation,
                "dataset_size": draw.randint(100, 2_000_000),
                "duration": "90ep",
                "warmup": "5ep",
            }
        )
    worlds = np.array([1, 2, 6, 8, 64, 100])
    columns = {name: np.array([job.get(name, 0) for job in jobs]) for name in bulk.JOB}
    columns |= {
        "sgd": np.array([job["optimizer"] == "sgd" for job in jobs]),
        "epochs": np.full(len(jobs), 90.0),
        "warmup_epochs": np.full(len(jobs), 5.0),
    }
    planned = bulk.plan(bulk.cross(columns, worlds), policy=policy, max_micro_batch=cap)
    feasible = 0
    for row, (job, world) in enumerate((job, world) for job in jobs for world in worlds.tolist()):
        want = plan.plan_row(
            job, {"nodes": 1, "gpus_per_node": world}, {"policy": policy, "max_micro_batch": cap}
        )
        assert planned["feasible"][row] == (want["status"] != "infeasible")
        feasible += int(planned["feasible"][row])
        for name in planned.keys() - {"feasible", "data_parallel"}:
            value, missing = planned[name][row].item(), np.nan if planned[name].dtype.kind == "f" else -1
            assert value == pytest.approx(
                missing if want[name] is None else want[name], rel=1e-15, abs=1e-15, nan_ok=True
            ), name
    assert 20 < feasible < len(jobs) * len(worlds)
