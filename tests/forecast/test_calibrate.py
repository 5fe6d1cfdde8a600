"""Calibration: on times of a known truth, with noise and outliers.

And on stored steps of bench/calibration.py; held-out points are predicted.
"""

import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.forecast.calibrate import calibrate, merge
from isobatch.forecast.measurements import AllReduceRecord, Measurements, StepRecord, load_measurements
from isobatch.forecast.profile import Constant, Profile, Reduced

INSIDE = [(g, b, a) for g in (1, 2, 4, 8, 16, 24, 32) for b in (4, 8, 32, 64) for a in (1, 2, 8)]
OUTSIDE = [(g, b, a) for g in (64, 256) for b in (4, 32, 128) for a in (1, 8)]


def random_truth(rng):
    def log(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    sample = log(1e-4, 1e-2)
    constants = {
        "compute_constant": sample * log(0.5, 20),
        "compute_per_sample": sample,
        "update": sample * log(0.1, 10),
        "intra_latency_us": log(2, 20),
        "intra_gb_s": log(20, 400),
        "inter_latency_us": log(10, 50),
        "inter_gb_s": log(2, 50),
        "overlap": rng.uniform(1, 6),
    }
    fields = {name: Constant(value=value) for name, value in constants.items()}
    return Profile(gradient_bytes=log(1e7, 1e10), **fields)


def seconds(truth, points):
    gpus, micro, accumulation = np.array(points).T
    return truth.forecast(gpus=gpus, micro_batch=micro, accumulation=accumulation)["step_seconds"]


def noisy(rng, value, count=20):
    """Samples with 2 % noise, and one in twenty half as long again."""
    noise = np.exp(0.02 * rng.standard_normal(count)) * np.where(rng.random(count) < 0.05, 1.5, 1)
    return tuple((value * noise).tolist())


def step(gpus=1, micro_batch=8, accumulation=1, step_seconds=(0.1,), **more):
    split = {"gpus": gpus, "gpus_per_node": 8, "micro_batch": micro_batch, "accumulation": accumulation}
    return StepRecord(**split, step_seconds=step_seconds, **more)


def reduced(size, seconds, gpus=8):
    return AllReduceRecord(gpus=gpus, gpus_per_node=8, bytes=size, seconds=seconds)


def sync_seconds(truth, gpus, size):
    scaled = msgspec.structs.replace(truth, gradient_bytes=size)
    return float(scaled.forecast(gpus=gpus, micro_batch=1)["sync_seconds"][0])


def with_constants(truth, **constants):
    measured = {
        name: value if name == "gradient_bytes" else Constant(value=value)
        for name, value in constants.items()
    }
    return msgspec.structs.replace(truth, **measured)


def measure(truth, rng, *, table, micro_batches=(4, 16, 64), gpus=(1, 2, 4, 8, 16, 32)):
    points = [(g, b, a) for g in gpus for b in micro_batches for a in (1, 4) if rng.random() < 0.7]
    steps = tuple(step(*at, noisy(rng, t)) for at, t in zip(points, seconds(truth, points), strict=True))
    reduces = []
    for g, size in [(g, size) for g in (8, 16, 32) for size in (1e6, 1e7, 1e8, 1e9)] if table else []:
        reduces.append(reduced(size, noisy(rng, sync_seconds(truth, g, size)), g))
    return Measurements(gradient_bytes=truth.gradient_bytes, steps=steps, all_reduce=tuple(reduces))


def test_held_out_points_are_predicted():
    inside, outside, covered = [], [], []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        truth = random_truth(rng)
        profile = calibrate(measure(truth, rng, table=seed % 2 == 0))
        for points, errors in ((INSIDE, inside), (OUTSIDE, outside)):
            errors.extend(np.abs(seconds(profile, points) / seconds(truth, points) - 1))
        gpus, micro, accumulation = np.array(INSIDE).T
        row = profile.forecast(gpus=gpus, micro_batch=micro, accumulation=accumulation)
        covered.extend(np.abs(row["step_seconds"] - seconds(truth, INSIDE)) <= row["step_error"])
        assert row["inside_measured_range"].all()
    assert np.median(inside) <= 0.05
    assert np.quantile(inside, 0.95) <= 0.15
    assert np.median(outside) <= 0.05
    assert np.quantile(outside, 0.95) <= 0.15
    assert np.mean(covered) >= 0.9


def test_a_time_that_is_flat_for_small_batches():
    rng = np.random.default_rng(3)
    flat = {"compute_constant": 0.001, "compute_per_sample": 0.001, "compute_floor": 0.02}
    truth = with_constants(random_truth(rng), **flat)
    profile = calibrate(measure(truth, rng, table=True, micro_batches=(1, 2, 4, 8, 32, 64, 128)))
    assert profile.compute_floor.value == pytest.approx(0.02, rel=0.1)


def test_the_lead_before_the_first_gradients_is_fitted():
    rng = np.random.default_rng(5)
    known = {"gradient_bytes": 1e8, "compute_constant": 0.01, "compute_per_sample": 0.001, "inter_gb_s": 2.0}
    truth = with_constants(random_truth(rng), **known, overlap=4.0, lead=0.4)
    profile = calibrate(measure(truth, rng, table=True, micro_batches=(4, 16, 64, 256)))
    assert profile.lead.value == pytest.approx(0.4, abs=0.1)
    errors = np.abs(seconds(profile, INSIDE) / seconds(truth, INSIDE) - 1)
    assert np.quantile(errors, 0.95) <= 0.02
    late = msgspec.structs.replace(truth, lead=None)
    plain = calibrate(measure(late, rng, table=True, micro_batches=(4, 16, 64, 256)))
    assert plain.lead is None or plain.lead.value < 0.1


def test_all_reduces_that_no_line_follows_are_looked_up():
    """Wires with times up to 40 % off latency and bandwidth, like gloo's."""
    rng = np.random.default_rng(6)
    known = {"gradient_bytes": 1e9, "intra_gb_s": 20.0, "inter_gb_s": 2.0, "overlap": 1.5}
    truth = with_constants(random_truth(rng), **known)
    sizes = truth.gradient_bytes * np.array([0.1, 0.3, 1.0, 3.0])
    bend = np.exp(rng.uniform(-0.35, 0.35, (4, 4)))
    real = tuple(
        Reduced(
            replicas_per_node=min(g, 8),
            nodes=max(1, g // 8),
            bytes=tuple(sizes.tolist()),
            seconds=tuple(
                sync_seconds(truth, g, at) * by for at, by in zip(sizes, factors.tolist(), strict=True)
            ),
        )
        for g, factors in zip((4, 8, 16, 32), bend, strict=True)
    )
    truth = msgspec.structs.replace(truth, all_reduce=real)
    data = measure(truth, rng, table=False, gpus=(1, 4, 8, 16, 32))
    reduces = tuple(
        reduced(size, noisy(rng, time), row.replicas_per_node * row.nodes)
        for row in real
        for size, time in zip(row.bytes, row.seconds, strict=True)
    )
    profile = calibrate(msgspec.structs.replace(data, all_reduce=reduces))
    shapes = [(row.replicas_per_node, row.nodes) for row in profile.all_reduce]
    assert shapes == [(4, 1), (8, 1), (8, 2), (8, 4)]
    points = [(g, b, a) for g in (4, 8, 16, 32) for b in (8, 32) for a in (1, 2)]
    line = msgspec.structs.replace(profile, all_reduce=())
    looked_up, by_line = (
        np.abs(seconds(constants, points) / seconds(truth, points) - 1) for constants in (profile, line)
    )
    assert looked_up.max() <= 0.05
    assert by_line.max() > 0.1


def test_constants_without_measurements_are_unidentified():
    rng = np.random.default_rng(1)
    truth = random_truth(rng)
    profile = calibrate(measure(truth, rng, table=False, gpus=(1, 2, 4, 8)))
    assert {"inter_latency_us", "inter_gb_s"} <= set(profile.unidentified)
    assert profile.inter_gb_s is None
    assert np.isnan(profile.forecast(gpus=16, micro_batch=4)["step_seconds"][0])
    alone = calibrate(_one_size(truth))
    assert "compute_constant" in alone.unidentified


def _one_size(truth):
    points = [(1, 8, 1), (1, 8, 4)]
    steps = tuple(step(*at, (float(t),)) for at, t in zip(points, seconds(truth, points), strict=True))
    return Measurements(gradient_bytes=truth.gradient_bytes, steps=steps)


def test_memory_is_the_line_through_the_peaks():
    steps = tuple(step(1, b, 1, (0.1 + b,), memory_gib=4 + 0.25 * b) for b in (1, 8, 32))
    profile = calibrate(Measurements(gradient_bytes=1e8, steps=steps))
    assert profile.memory_fixed_gib.value == pytest.approx(4)
    assert profile.memory_per_sample_gib.value == pytest.approx(0.25)


def sharded_steps(counts, micro_batches):
    """Peaks of 4 GiB, 24 GiB over the replicas, and 0.25 GiB a sample."""
    return tuple(
        step(gpus, b, 1, (0.1 + b,), memory_gib=4 + 24 / gpus + 0.25 * b)
        for gpus in counts
        for b in micro_batches
    )


def test_memory_that_is_sharded_is_told_apart_by_the_replicas():
    measurements = Measurements(gradient_bytes=1e8, steps=sharded_steps((1, 2, 8), (1, 8, 32)), sharded=True)
    profile = calibrate(measurements)
    constants = (profile.memory_fixed_gib, profile.memory_sharded_gib, profile.memory_per_sample_gib)
    assert [constant.value for constant in constants] == pytest.approx([4, 24, 0.25])
    # At one count nothing tells them apart: then the memory is not known, and not said.
    alone = calibrate(Measurements(gradient_bytes=1e8, steps=sharded_steps((8,), (1, 8, 32)), sharded=True))
    assert alone.memory_fixed_gib is alone.memory_sharded_gib is None
    # Parts of another split do not mix with these.
    plain = calibrate(Measurements(gradient_bytes=1e8, steps=sharded_steps((8,), (1, 8, 32))))
    assert plain.memory_fixed_gib.value == pytest.approx(7)
    assert merge(plain, profile).memory_sharded_gib is None
    assert merge(profile, plain).memory_fixed_gib == profile.memory_fixed_gib
    assert merge(alone, profile).memory_sharded_gib == profile.memory_sharded_gib


def test_merging_keeps_what_only_the_older_profile_knows():
    rng = np.random.default_rng(4)
    truth = random_truth(rng)
    older = calibrate(measure(truth, rng, table=True))
    newer = calibrate(
        measure(truth, rng, table=False, gpus=(1, 2, 4, 8), micro_batches=(8, 128)), older=older
    )
    assert newer.inter_gb_s == older.inter_gb_s
    assert newer.all_reduce == older.all_reduce != ()
    assert newer.micro_batch == (4, 128)
    assert newer.nodes == older.nodes
    assert newer.compute_per_sample.error <= older.compute_per_sample.error
    assert "inter_gb_s" not in newer.unidentified


@pytest.mark.parametrize(("field", "value"), [("gpu", "A100"), ("link", "slow"), ("gradient_bytes", 5.0)])
def test_a_profile_of_other_hardware_is_refused(field, value):
    rng = np.random.default_rng(4)
    profile = calibrate(measure(random_truth(rng), rng, table=False))
    with pytest.raises(ib.InputError, match=f"{field}"):
        merge(profile, msgspec.structs.replace(profile, **{field: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": (step(),)}, "steps must have two configurations or more, got 1"),
        ({"steps": (step(), step(micro_batch=16, step_seconds=(0.2, -1.0)))}, "row 2: steps.step_seconds"),
        ({"steps": (step(), step(micro_batch=0))}, "row 2: steps.micro_batch must be above 0, got 0"),
        ({"steps": (step(), step(step_seconds=()))}, "row 2: steps.step_seconds"),
        (
            {"steps": (step(), step(step_seconds=(0.3,)), step(micro_batch=16))},
            "row 2, steps.step_seconds: micro-batch 8 × accumulation 1 on 1 GPUs takes 0.3 s",
        ),
        ({"steps": (step(), step(gpus=3, model_parallel=2))}, "steps.model_parallel: does not divide"),
        ({"all_reduce": (reduced(1e6, (0.1,)),)}, "a table with one point"),
        ({"gradient_bytes": 0.0}, "gradient_bytes"),
        ({"noise_scale": 0.0}, "noise_scale must be a number of samples above 0, got 0.0"),
        (
            {"all_reduce": tuple(reduced(size, (-0.1,)) for size in (1e6, 1e7))},
            "row 1: all_reduce.seconds must be above 0, got (-0.1,)",
        ),
        ({"bucket_bytes": (1e6, 1e6)}, "bucket_bytes: holds 2000000.0 bytes in 2"),
        (
            {"steps": tuple(step(1, b, 1, (t,)) for b, t in ((1, 9), (2, 0.01), (4, 7), (8, 0.02)))},
            "the measured times do not fit the model",
        ),
    ],
)
def test_bad_measurements_are_said(changes, message):
    good = {"gradient_bytes": 1e8, "steps": (step(), step(micro_batch=16, step_seconds=(0.2,)))}
    with pytest.raises(ib.InputError) as error:
        calibrate(Measurements(**good | changes))
    assert message in str(error.value)


def test_a_bad_report_is_named_with_its_row_and_field(tmp_path, capsys):
    good = Measurements(gradient_bytes=1e8, steps=(step(), step(micro_batch=16, step_seconds=(0.2,))))
    bad = msgspec.structs.replace(good, steps=(*good.steps, step(micro_batch=4, step_seconds=(0.1, -0.1))))
    for name, data in (("good", good), ("bad", bad), ("other", msgspec.structs.replace(good, gpu="A100"))):
        (tmp_path / f"{name}.json").write_bytes(
            msgspec.json.encode({"measurements": msgspec.to_builtins(data)})
        )
    command = ["calibrate", "-o", str(tmp_path / "profile.json"), str(tmp_path / "good.json")]
    assert main([*command, str(tmp_path / "bad.json")]) == 2
    assert "bad.json, row 3: steps.step_seconds must be above 0, got (0.1, -0.1)" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "other.json")]) == 2
    assert "gpu must be the same, got None in one report and 'A100' in another" in capsys.readouterr().err


def test_the_command(tmp_path, capsys, ran):
    rng = np.random.default_rng(2)
    data = measure(random_truth(rng), rng, table=False, gpus=(1, 2, 4, 8))
    (tmp_path / "report.json").write_bytes(
        msgspec.json.encode({"verdict": "passed", "measurements": msgspec.to_builtins(data)})
    )
    (tmp_path / "alone.json").write_bytes(msgspec.json.encode(data))
    assert load_measurements(tmp_path / "report.json") == load_measurements(tmp_path / "alone.json")
    words = ["calibrate", str(tmp_path / "report.json"), "-o", str(tmp_path / "profile.json")]
    printed = ran(words)
    assert "compute_per_sample" in printed.out
    assert "not identified: inter_latency_us, inter_gb_s" in printed.err.replace("intra_latency_us, ", "")
    assert json.loads(ran([*words, "--json", "--merge", str(tmp_path / "profile.json")]).out)["schema"] == 1
    assert main(["calibrate", str(tmp_path / "none.json"), "-o", str(tmp_path / "x.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text('{"schema": 1, "lr": 0.1}')
    assert main(["calibrate", str(tmp_path / "plan.json"), "-o", str(tmp_path / "x.json")]) == 2
    # The 2nd report's 1st step takes three times as long.
    first = data.steps[0]
    slow = msgspec.structs.replace(
        first, step_seconds=tuple(3 * seconds_each for seconds_each in first.step_seconds)
    )
    slow_report = msgspec.structs.replace(data, steps=(slow, *data.steps[1:]))
    (tmp_path / "slow.json").write_bytes(msgspec.json.encode(slow_report))
    files = [str(tmp_path / "alone.json"), str(tmp_path / "slow.json")]
    shown = capsys.readouterr().err
    error = ran(["calibrate", *files, "-o", str(tmp_path / "x.json")], 2).err
    assert "row 1, steps.step_seconds: micro-batch" in error
    assert "report 2" not in error
    assert "s elsewhere: measure the disturbed one again" in error
    assert "plan.json: is neither a validator's report nor measurements" in shown
    assert not (tmp_path / "x.json").exists()


# ---- steps that were measured on ranks over limited links ----

BENCH = Path(__file__).parents[2] / "bench"
STORED = sorted((BENCH / "results" / "calibration").glob("*.json"))


@pytest.fixture
def calibration(monkeypatch):
    pytest.importorskip("scipy", reason="a calibration needs it")
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return pytest.importorskip("calibration")


def test_steps_that_were_not_fitted_are_predicted(calibration):
    inside, outside = [], []
    assert len(STORED) >= 3
    for file in STORED:
        stored = json.loads(file.read_text())
        measured, wires = calibration.fitted(stored, wires=True)
        profile = calibration.calibrate(measured)
        most = {name: max(values) for name, values in calibration.PLANS[stored["kind"]]["fit"].items()}
        for (gpus, micro, accumulation), samples in calibration.points(stored).items():
            shape = {"gpus": gpus, "micro_batch": micro, "accumulation": accumulation, "gpus_per_node": 1}
            error = abs(profile.forecast(**shape)["step_seconds"][0] / np.median(samples) - 1)
            if (gpus, micro, accumulation) not in wires:
                within = gpus <= most["gpus"] and micro <= most["micro_batch"]
                (inside if within else outside).append(error)
    for errors in (inside, outside):
        assert len(errors) >= 40
        assert np.median(errors) <= 0.05
        assert np.quantile(errors, 0.95) <= 0.15
