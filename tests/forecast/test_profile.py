"""Profiles: files, estimates, forecasts against the formulas, memory to micro-batch, bad input."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isobatch as ib
from isobatch.forecast.profile import GIB, Constant, Profile, Reduced
from reference.profile import profile_of


def measured(**changes):
    known = {"compute_floor": 0.02, "update": 0.004, "intra_gb_s": 100.0, "inter_gb_s": 10.0}
    known |= {"micro_batch": (1, 64), "replicas_per_node": (1, 8), "nodes": (1, 4)}
    return profile_of(**known | changes)


@given(
    nodes=st.integers(1, 64),
    per_node=st.sampled_from([1, 2, 4, 8]),
    model_parallel=st.sampled_from([1, 2, 4]),
    micro_batch=st.integers(1, 100),
    accumulation=st.integers(1, 100),
    lead=st.sampled_from([0.0, 0.25, 1.0]),
    buckets=st.sampled_from([(), (1e7, 9e7), (25e6,) * 4]),
)
def test_forecast_is_the_formula(nodes, per_node, model_parallel, micro_batch, accumulation, lead, buckets):
    gpus = nodes * per_node * model_parallel
    row = measured(lead=lead, bucket_bytes=buckets).forecast(
        gpus=gpus,
        gpus_per_node=per_node * model_parallel,
        model_parallel=model_parallel,
        micro_batch=micro_batch,
        accumulation=accumulation,
    )
    bytes_of_gpu = 1e8 / model_parallel
    messages = max(1, len(buckets))
    intra = 2 * (per_node - 1) * (messages * 5e-6 + bytes_of_gpu / per_node / 1e11)
    ring = 2 * (nodes - 1) * (messages * 20e-6 + 1e8 / nodes / 1e10)
    tree = 2 * math.log2(nodes) * messages * 20e-6 + (2 * 1e8 / 1e10 if nodes > 1 else 0)
    sync = intra + min(ring, tree)
    compute = max(0.02, 0.01 + 0.001 * micro_batch)
    last = lead * compute + math.hypot((1 - lead) * compute, sync)
    step = (accumulation - 1) * compute + last + 0.004
    samples = micro_batch * accumulation * nodes * per_node
    assert row["sync_seconds"][0] == pytest.approx(sync, rel=1e-9)
    assert row["step_seconds"][0] == pytest.approx(step, rel=1e-9)
    assert row["samples_per_second"][0] == pytest.approx(samples / step, rel=1e-9)
    assert row["efficiency"][0] == pytest.approx((accumulation * compute + 0.004) / step, rel=1e-9)
    assert row["memory_gib"][0] == pytest.approx(10 + 0.5 * micro_batch)
    assert row["inside_measured_range"][0] == (micro_batch <= 64 and nodes <= 4)


def table(*rows):
    return tuple(
        Reduced(replicas_per_node=n, nodes=nodes, bytes=sizes, seconds=seconds)
        for n, nodes, sizes, seconds in rows
    )


def test_a_measured_all_reduce_comes_before_the_formula():
    sizes = (1e7, 3e7, 2e8)
    known = measured(
        bucket_bytes=(1e7, 2e7, 7e7),
        all_reduce=table(
            (8, 1, sizes, (0.001, 0.004, 0.03)),
            (2, 1, sizes, (0.002, 0.005, 0.02)),
            (8, 2, (1e7, 6e7), (0.01, 0.02)),  # does not reach the largest bucket
            (8, 4, sizes, (0.1, 0.2, 0.9)),
        ),
    )
    row = known.forecast(gpus=[8, 2, 4, 16, 32, 1, 64], micro_batch=8)
    sync = row["sync_seconds"]
    # Each bucket for itself, on the line between the two sizes around it.
    assert sync[0] == pytest.approx(0.001 + 0.0025 + (0.004 + 0.026 * 4 / 17))
    assert sync[4] == pytest.approx(0.1 + 0.15 + (0.2 + 0.7 * 4 / 17))
    by_formula = msgspec.structs.replace(known, all_reduce=()).forecast(
        gpus=[8, 2, 4, 16, 32, 1, 64], micro_batch=8
    )["sync_seconds"]
    # Between two that were measured, so is what they differ from the formula by.
    factor = sync[:3] / by_formula[:3]
    assert factor[2] == pytest.approx(factor[1] + (factor[0] - factor[1]) * 2 / 6)
    assert sync[[3, 6]].tolist() == by_formula[[3, 6]].tolist()
    assert row["all_reduce_measured"].tolist() == [True, True, True, False, True, True, False]
    alone = measured(gradient_bytes=3e7, all_reduce=table((8, 1, sizes, (0.001, 0.004, 0.03))))
    assert alone.forecast(gpus=8, micro_batch=8)["sync_seconds"][0] == pytest.approx(0.004)
    sharded = alone.forecast(gpus=8, model_parallel=2, micro_batch=8)
    assert not sharded["all_reduce_measured"][0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((8, 1, (1e6,), (0.1,)), "as many times as sizes, two at least, got (0.1,)"),
        ((8, 1, (1e6, 2e6), (0.1,)), "as many times as sizes, two at least, got (0.1,)"),
        ((8, 1, (2e6, 1e6), (0.1, 0.2)), "must be bytes that ascend from above 0"),
        ((8, 1, (1e6, 2e6), (0.1, -0.2)), "must be seconds above 0, got (0.1, -0.2)"),
        ((0, 1, (1e6, 2e6), (0.1, 0.2)), "counts of replicas and nodes from 1, got (0, 1)"),
    ],
)
def test_a_bad_table_is_named(rows, message):
    with pytest.raises(ib.InputError, match="all_reduce") as error:
        table(rows)
    assert message in str(error.value)


def test_unknown_constants_are_not_guessed():
    row = measured(inter_gb_s=None).forecast(gpus=[8, 16], micro_batch=4)
    assert np.isfinite(row["step_seconds"]).tolist() == [True, False]
    assert np.isnan(measured(memory_per_sample_gib=None).forecast(gpus=1, micro_batch=1)["memory_gib"][0])


def test_the_interval_holds_the_errors():
    uncertain = measured(compute_per_sample=Constant(value=0.001, error=0.0001), compute_floor=None)
    row = uncertain.forecast(gpus=1, micro_batch=100, accumulation=2)
    assert row["step_error"][0] == pytest.approx(2 * 100 * 0.0001)


def test_a_file_is_what_was_saved(tmp_path):
    profile = measured(noise_by_progress=((0.0, 10.0), (0.3, 20.0)), gpu="H100")
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "truncated"),
        ("{}", "missing required field `gradient_bytes`"),
        (
            '{"gradient_bytes": 1, "compute_constant": {"value": -1}, "compute_per_sample": {"value": 1}}',
            "must be a finite number, 0 or more, got -1",
        ),
        (
            '{"gradient_bytes": 1, "compute_constant": {"value": 1}, "compute_per_sample": {"value": 0}}',
            "must be a finite number above 0, got 0",
        ),
        (
            '{"schema": 9, "gradient_bytes": 1, "compute_constant": {"value": 1}, '
            '"compute_per_sample": {"value": 1}}',
            "schema must be 1, which this version reads, got 9",
        ),
        ('{"gradient_bytes": 1, "gpus": 3}', "unknown field `gpus`"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, message):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ib.InputError, match=r"profile\.json") as error:
        Profile.load(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlap": 0.5}, "overlap must be a number from 1 to 10, got 0.5"),
        ({"lead": 1.5}, "lead must be a share from 0 to 1, got 1.5"),
        ({"bucket_bytes": (1e8, 1e8)}, "bucket_bytes: holds 200000000.0 bytes in 2"),
        ({"noise_scale": 0.0}, "noise_scale must be a finite number above 0, got 0.0"),
        ({"noise_by_progress": ((0.1, 5.0),)}, "must be progress that ascends from 0"),
        ({"noise_by_progress": ((0.0, -5.0),)}, "must be numbers of samples above 0, got -5.0"),
        ({"inter_gb_s": float("inf")}, "inter_gb_s must be a finite number above 0, got inf"),
        ({"micro_batch": (4, 2)}, "micro_batch must be two counts from 1, ascending, got (4, 2)"),
        ({"update": Constant(value=1, error=-1)}, "update.error must be a finite number, 0 or more, got -1"),
    ],
)
def test_bad_constants_are_named(change, message):
    with pytest.raises(ib.InputError) as error:
        measured(**change)
    assert message in str(error.value)


def test_bad_shapes_are_named():
    with pytest.raises(ib.InputError, match="row 2, model_parallel: does not divide the GPUs"):
        measured().forecast(gpus=[8, 9], model_parallel=2, micro_batch=1)
    with pytest.raises(
        ib.InputError, match="micro_batch must be a whole number from 1 to 1,099,511,627,776, got 0"
    ):
        measured().forecast(gpus=8, micro_batch=0)


def test_sharded_memory_falls_with_the_replicas():
    profile = measured(memory_sharded_gib=16.0)
    row = profile.forecast(gpus=[1, 2, 4, 8], micro_batch=4, model_parallel=[1, 1, 1, 2])
    assert row["memory_gib"].tolist() == [28.0, 20.0, 16.0, 16.0]


def test_the_stages_of_zero_are_the_papers():
    """Rajbhandari et al. 2020, figure 1: 7.5 B parameters, mixed-precision Adam, 64 replicas.

    120, 31.4, 16.6 and 1.88 GB.
    """

    def gigabytes(stage, **how):
        profile = Profile.estimate(
            parameters=7_500_000_000, flops_per_sample=1e9, gpu_tflops=100, optimizer="adam",
            memory_per_sample_gib=1e-9,
            intra_gb_s=1.0, inter_gb_s=1.0, zero_stage=stage, **how,
        )  # fmt: skip
        return profile.forecast(gpus=64, micro_batch=1)["memory_gib"][0] * GIB / 1e9

    assert [round(gigabytes(stage), 2) for stage in range(4)] == [120.0, 31.41, 16.64, 1.88]
    # With the optimizer's state in the host's memory weights and gradients are left: 4 bytes a parameter.
    assert [round(gigabytes(stage, offload=True), 2) for stage in (0, 2)] == [30.0, 15.23]
    for stage, whole, shared in (
        (0, 18, 0),
        (2, 4, 16),
        (3, 0, 18),
    ):  # the ends of the errors: DeepSpeed's own estimators
        estimated = Profile.estimate(
            parameters=10**9, flops_per_sample=1, gpu_tflops=1, optimizer="adam", zero_stage=stage
        )
        parts = (estimated.memory_fixed_gib, estimated.memory_sharded_gib)
        ends = [0 if part is None else (part.value + (part.error or 0)) * GIB / 1e9 for part in parts]
        assert ends == [pytest.approx(whole), pytest.approx(shared)]
    with pytest.raises(ib.InputError, match="zero_stage"):
        gigabytes(4)
    with pytest.raises(ib.InputError, match="offload"):
        gigabytes(1, offload="cpu")


def test_an_estimate_says_so():
    profile = Profile.estimate(parameters=10**9, flops_per_sample=6e12, gpu_tflops=100, intra_gb_s=100)
    assert profile.estimated
    assert all(constant.estimated for constant in profile.constants().values())
    assert profile.compute_per_sample.value == pytest.approx(0.15)
    assert profile.memory_fixed_gib.value * GIB == pytest.approx(16e9)
    assert profile.inter_gb_s is None
    assert not measured().estimated
    with pytest.raises(ib.InputError, match="optimizer"):
        Profile.estimate(parameters=1, flops_per_sample=1, gpu_tflops=1, optimizer="adamx")
    with pytest.raises(ib.InputError, match="gpu_tflops"):
        Profile.estimate(parameters=1, flops_per_sample=1, gpu_tflops=0)
    for field, value, shown in (
        ("utilization", 2, "2.0"),
        ("gpu", 100, "100"),
        ("workload", None, "None"),
        ("latency_us", {}, "{}"),
    ):
        with pytest.raises(ib.InputError, match=f"{field} must be .*, got {shown}"):
            Profile.estimate(**{"parameters": 1, "flops_per_sample": 1, "gpu_tflops": 1, field: value})


def test_noise_that_grows_costs_what_its_stretches_cost():
    table = ((0.0, 50.0), (0.25, 400.0), (0.5, 3000.0))
    tuned, batch = 128, 1024
    equivalent = measured(noise_by_progress=table).noise_scale_over_run(tuned)
    cost = sum(
        w * (phi + batch) / (phi + tuned) for w, (_, phi) in zip((0.25, 0.25, 0.5), table, strict=True)
    )
    unit = sum(w / (phi + tuned) for w, (_, phi) in zip((0.25, 0.25, 0.5), table, strict=True))
    assert cost == pytest.approx((equivalent + batch) * unit)
