"""The soak, checkpoints and loaders, rails: on two gloo ranks, and what is made of their figures."""

from types import SimpleNamespace

import msgspec
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

from ddp.validating import bandwidths, refused, validate
from isobatch.diagnosis.causes import Cause
from isobatch.validate import Options, Report, Verdict
from isobatch.validate.measure import soak
from isobatch.validate.proofs import soak as proof
from isobatch.validate.proofs import storage
from isobatch.validate.report.figures import Soak

RECIPE = {
    "effective_batch": 16,
    "lr": 0.1,
    "optimizer": "sgd",
    "dataset_size": 200,
    "duration": "40st",
    "micro_batch": 8,
}
GROUP = SimpleNamespace(
    world_size=2, roster=[SimpleNamespace(host="a", local_rank=rank) for rank in range(2)]
)


def report(two, workload, **options):
    plan = ib.plan(ib.Recipe(**RECIPE, save_every="20st"), 2).to_json()
    told = two(validate, plan, workload=f"ddp.workloads:{workload}", noise_steps=0, **options)
    return msgspec.json.decode(told[0], type=Report)


def test_the_same_step_gives_the_same_bits(two):
    found = report(two, "good", soak_minutes=1.0)  # 60 looks at a clock that is made up
    assert (found.proof("same_bits").verdict, found.soak.differing) == (Verdict.PASS, [0, 0])
    assert found.soak.deterministic
    assert not {"checkpoint", "loader"} & {
        one.name for one in found.proofs
    }  # only where the workload has them
    assert 10 < found.soak.repeats == found.soak.steps + soak.TRIES < 40
    assert len(found.soak.block_seconds) == found.soak.steps


def test_a_rank_that_computes_other_bits_is_named(two):
    found = report(two, "flips_a_bit_on_rank_1", soak_minutes=2.0)
    bits = found.proof("same_bits")
    assert (bits.verdict, bits.diagnosis.causes) == (Verdict.FAIL, (Cause.SILENT_CORRUPTION,))
    assert "GPU 1 (rank 1)" in bits.diagnosis.text
    assert "rank 0" not in bits.text
    assert found.soak.differing[0] == 0 < found.soak.differing[1]


def test_a_step_that_never_has_the_same_bits_is_unchecked(two):
    bits = report(two, "other_bits_each_time", soak_minutes=0.5).proof("same_bits")
    assert bits.verdict is Verdict.UNCHECKED
    assert "other bits each time" in bits.text


def soaked(drift, *, blocks=60, **given):
    fields = {
        "minutes": 1.0,
        "steps": 600,
        "repeats": 60,
        "deterministic": True,
        "drift": drift,
        "rank_drift": [0.0, drift],
        "differing": [0, 0],
        "averaged_differing": 0,
        "block_seconds": [0.1 + 0.1 * drift * (n >= 2 * blocks // 3) for n in range(blocks)],
        "clock_drift": [0.0, -drift],
    }
    return Soak(**fields | given)


@pytest.mark.parametrize(
    ("drift", "verdict"),
    [(0.02, Verdict.PASS), (0.15, Verdict.CAUTION), (0.5, Verdict.FAIL), (-0.3, Verdict.PASS)],
)
def test_steps_that_slow_down(drift, verdict):
    found = proof.judge_drift(GROUP, soaked(drift), Options())
    assert found.verdict is verdict
    if verdict is not Verdict.PASS:
        assert found.diagnosis.cause is Cause.STEP_DRIFTS
        assert f"host a GPU 1 (rank 1), its own part +{drift:.1%}, its clock -{drift:.1%}" in found.text


def test_a_drift_among_noise_is_inconclusive_and_few_blocks_say_nothing():
    noisy = soaked(0.12, block_seconds=[0.1, 0.2] * 30)
    assert proof.judge_drift(GROUP, noisy, Options()).verdict is Verdict.INCONCLUSIVE
    assert proof.judge_drift(GROUP, soaked(0.5, blocks=5), Options()).verdict is Verdict.UNCHECKED


def test_an_average_with_other_bits_is_the_all_reduces():
    found = proof.judge_bits(GROUP, soaked(0.0, averaged_differing=2))
    assert (found.verdict, found.diagnosis.cause) == (Verdict.CAUTION, Cause.WRONG_SUMS)
    assert "another order" in proof.judge_bits(GROUP, soaked(0.0, averaged_differing=None)).text


def test_checkpoints_and_loaders_of_a_workload(two):
    found = report(two, "saves_and_loads")
    save, load = found.proof("checkpoint"), found.proof("loader")
    assert save.values["save_seconds"] > 0
    assert "every 20 steps" in save.text
    assert load.values["loaded_samples_per_second"] > 0
    assert load.values["needed_samples_per_second"] == pytest.approx(8 / found.step.planned_step_seconds)


def test_a_save_that_fails_on_one_rank_ends_all(two):
    told = two(
        refused,
        ib.plan(ib.Recipe(**RECIPE), 2).to_json(),
        workload="ddp.workloads:fails_to_save_on_rank_1",
        noise_steps=0,
    )
    assert all("Workload.save" in said and "no space left on /ckpt" in said for said in told)


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(1.0, Verdict.PASS), (3.0, Verdict.CAUTION), (10.0, Verdict.FAIL)]
)
def test_a_checkpoint_that_takes_too_much_of_the_run(seconds, verdict):
    found = storage.judge_save(seconds, 100, 0.2, Options())
    assert (found.verdict, found.cause) == (
        verdict,
        None if verdict is Verdict.PASS else Cause.SLOW_CHECKPOINT,
    )
    assert storage.judge_save(seconds, None, 0.2, Options()).verdict is Verdict.UNCHECKED


@pytest.mark.parametrize(
    ("loaded", "verdict"), [(99.0, Verdict.PASS), (80.0, Verdict.CAUTION), (50.0, Verdict.FAIL)]
)
def test_a_loader_that_does_not_keep_up(loaded, verdict):
    found = storage.judge_loader(loaded, 100.0, Options())
    assert (found.verdict, found.cause) == (verdict, None if verdict is Verdict.PASS else Cause.SLOW_LOADER)


def test_a_loader_is_timed_behind_its_first_batch(monkeypatch):
    ticks = iter([0.0, 1.0, 2.0, 4.0, 5.0, 6.0])
    monkeypatch.setattr(storage, "clock", lambda: next(ticks))
    assert storage.samples_per_second([range(100), range(8), range(8)], 60.0) == 4.0
    assert storage.samples_per_second([], 60.0) == 0.0  # as said of a loader that is empty


def test_bandwidths_inside_nodes_and_of_rails(two):
    inside, rails = two(bandwidths, [0, 0])[0]
    assert ([*inside], rails) == (["host n0"], {})
    inside, rails = two(bandwidths, [0, 1])[0]
    assert (inside, [*rails]) == ({}, ["rail 0 (GPU 0 of each node)"])
    assert rails["rail 0 (GPU 0 of each node)"] > 0


def test_minutes_are_checked():
    with pytest.raises(ib.InputError, match="at least 0"):
        Options(soak_minutes=-1.0)
