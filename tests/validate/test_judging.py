"""Verdicts and causes of composed figures, without a rank: those that a healthy machine does not show."""

from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import torch

from composed.figures import Alone, row
from isobatch.equivalence import tensors
from isobatch.equivalence.laws import Cause
from isobatch.equivalence.observation import Observation, change_of, sketched
from isobatch.equivalence.tensors import likeness
from isobatch.forecast.measurements import Measurements
from isobatch.validate import Options, Verdict
from isobatch.validate.figures import Noise
from isobatch.validate.proofs import all_reduce, epoch, noise_scale, step_time, workload
from isobatch.validate.proofs.gradient import _after, _gradient, _How
from plan_of import loop_of

PLAN = loop_of()
GROUP = SimpleNamespace(world_size=2, emulated=False, pulse=SimpleNamespace(who=lambda rank: f"rank {rank}"))
TRAINING = SimpleNamespace(
    plan=PLAN,
    options=Options(step_seconds=1.0),
    group=GROUP,
    batch=48,
    sizes=[[8, 8, 8]] * 2,
    micro_batch=8,
    workload=SimpleNamespace(stand_in=False),
    model=torch.nn.Linear(1, 1),
)
HOW = _How("mean", None, None, torch.float32, 1e-5)


@pytest.mark.parametrize(
    ("measured", "declared", "verdict", "cause"),
    [
        ("mean", "mean", Verdict.PASS, None),
        ("sum", "mean", Verdict.FAIL, Cause.SUMMED_LOSS),
        ("mean", "sum", Verdict.FAIL, Cause.MEAN_LOSS),
        ("neither", "mean", Verdict.CAUTION, Cause.LOSS_WEIGHTED),
    ],
)
def test_a_loss_is_what_it_is_declared(measured, declared, verdict, cause):
    proof = workload.judge_loss(measured, declared)
    assert (proof.verdict, proof.cause) == (verdict, cause)


@pytest.mark.parametrize(
    ("gradient", "cause"),
    [
        ([3.0, 0.0], Cause.NOT_DIVIDED),
        ([5.5, 0.0], Cause.GRADIENT_FACTOR),
        ([1.0, 1.0], Cause.ANOTHER_SAMPLES),
    ],
)
def test_a_gradient_that_is_off(gradient, cause):
    like = likeness([torch.tensor(gradient)], [torch.tensor([1.0, 0.0])])
    proof = _gradient(TRAINING, like, None, HOW)
    assert (proof.verdict, proof.cause) == (Verdict.FAIL, cause)


@pytest.mark.parametrize("elements", [1, 10, 1000])
def test_a_difference_is_the_same_by_pieces(monkeypatch, elements):
    monkeypatch.setattr(tensors, "ELEMENTS", elements)
    reference, before = [[torch.randn(7, 5), torch.randn(3), None] for _ in range(2)]
    own = [reference[0] * 3, reference[1] * 3 + 0.1, None]
    whole = likeness(own, reference)
    a, b = (torch.cat([t[0].flatten(), t[1]]).double() for t in (own, reference))
    assert whole.error == pytest.approx(float((a - b).norm() / b.norm()))
    assert whole.ratio == pytest.approx(float(a @ b / b.square().sum()))
    assert likeness(before, before, reference).error == 0
    once, twice = ([before[k] + times * reference[k] for k in (0, 1)] for times in (1, 2))
    assert likeness(twice, once, before[:2]).ratio == pytest.approx(2, rel=1e-5)


def stepped(weights, before):
    return Observation(sketched(weights, weights), sketched(weights, weights), change_of(weights, before))


def test_an_optimizer_that_steps_otherwise():
    before, after, reference = ([torch.tensor([value])] for value in (1.0, 0.9, 0.8))
    weights, update = _after(stepped(after, before), stepped(reference, before), HOW, exact=True)
    assert weights.cause is update.cause is Cause.OTHER_UPDATE


def test_a_large_update_may_be_off_by_what_an_update_may():
    """Adam's first step divides each gradient by itself: its noise is a part of the learning rate."""
    before, reference = [torch.full((100,), 0.2)], [torch.full((100,), 0.1)]
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0))
    for off, verdict in (4e-4, Verdict.PASS), (4e-3, Verdict.FAIL):
        own = [reference[0] + 0.1 * off * noise]
        proofs = _after(stepped(own, before), stepped(reference, before), HOW, exact=True)
        assert [proof.verdict for proof in proofs] == [verdict, verdict], off
        assert proofs[0].values["relative_l2"] > HOW.gate


def test_an_epoch_of_other_steps():
    plan = msgspec.structs.replace(PLAN, steps_per_epoch=6)
    trial = SimpleNamespace(plan=plan, options=Options(), group=Alone())
    _, proof = epoch.prove(trial)
    assert (proof.verdict, proof.cause) == (Verdict.FAIL, Cause.SAMPLER_COUNTS)


@pytest.mark.parametrize(
    ("seconds", "spread", "verdict", "cause"),
    [
        (1.05, 0.0, Verdict.PASS, None),
        (1.5, 0.0, Verdict.FAIL, Cause.SLOWER_STEP),
        (0.8, 0.0, Verdict.CAUTION, Cause.FASTER_STEP),
        (1.5, 0.9, Verdict.INCONCLUSIVE, Cause.NOISY_HOST),
        (1.12, 0.06, Verdict.INCONCLUSIVE, Cause.NOISY_HOST),  # it may be within its gate
        (1.12, 0.0, Verdict.CAUTION, Cause.SLOWER_STEP),
    ],
)
def test_a_step_against_its_forecast(seconds, spread, verdict, cause):
    step = SimpleNamespace(
        planned_step_seconds=seconds,
        samples_per_second=48 / seconds,
        sync_seconds=[seconds],
        spread=spread,
        accumulation=3,
        planned_accumulation=3,
    )
    proof = step_time.judge_time(TRAINING, step)
    assert (proof.verdict, proof.cause) == (verdict, cause)
    assert f"median of 1 steps, spread {spread:.0%}, 1 s forecast" in proof.text


@pytest.mark.parametrize(
    ("fast", "slow", "verdict"),
    [
        (100.0, 103.0, Verdict.PASS),
        (100.0, 150.0, Verdict.INCONCLUSIVE),
        (118.0, 120.0, Verdict.CAUTION),
        (200.0, 220.0, Verdict.FAIL),
    ],
)
def test_noise_is_told_from_a_slow_link(fast, slow, verdict):
    """8 samples, one of them fast, of 1 MB: 100 µs on the expected link of 10 GB/s."""
    table = [row(slow, [fast] + [slow] * 7, nodes=2)]
    group = SimpleNamespace(emulated=False, world_size=2, device=SimpleNamespace(type="cpu"))
    assert all_reduce.judge_bandwidth(group, Options(bus_gb_s=10.0), table, 10.0).verdict is verdict


def test_wrong_sums_are_counted():
    proof = all_reduce.judge_sums([row(bytes=1024, wrong_elements=3)], 0)
    assert (proof.verdict, proof.cause) == (Verdict.FAIL, Cause.WRONG_SUMS)
    assert proof.text == "3 wrong elements at 1024 bytes of float32"


@pytest.mark.parametrize(
    ("scale", "error", "verdict"), [(214.5, 5700.0, Verdict.UNCHECKED), (214.5, 60.0, Verdict.PASS)]
)
def test_a_noise_scale_that_may_be_nothing_never_becomes_a_profile(monkeypatch, scale, error, verdict):
    figures = {"gradient_norm_sq": 1.0, "variance_trace": 1.0, "small_batch": 8, "large_batch": 16}
    noise = Noise(steps=8, noise_scale=scale, standard_error=error, **figures)
    reported = {}
    trial = SimpleNamespace(
        timed=None,
        options=Options(),
        measurements=Measurements(gradient_bytes=1.0, steps=()),
        draft=SimpleNamespace(add=lambda **parts: reported.update(parts)),
    )
    proof = noise_scale.judge(noise, "")
    monkeypatch.setattr(noise_scale, "measure", lambda *_: (noise, proof))
    assert noise_scale.prove(trial) == [proof]
    assert proof.verdict is verdict
    reported_scale = reported.get("measurements", trial.measurements).noise_scale
    assert reported_scale == (scale if verdict is Verdict.PASS else None)
