"""Values at the limits of a rule, a trainer or a column."""

import pytest

import isobatch as ib
from isobatch import Reason
from plan_of import plan_of
from reference.profile import profile_of

RUN = {"dataset_size": 100_000, "duration": "10ep", "warmup": "1ep"}


def plan(recipe, gpus=16, **settings):
    return plan_of(gpus, **{"lr": 1e-3, **RUN, **recipe}, **settings)


@pytest.mark.parametrize("betas", [(0.0, 0.0), (0.0, 0.999), (0.9, 0.0)])
def test_a_beta_of_zero_stays_under_sde(betas):
    planned = plan({"betas": betas}, policy=512, rule="sde")
    assert planned.status != "infeasible"
    assert [new == 0 for new in planned.betas] == [old == 0 for old in betas]
    assert all(0 <= beta < 1 for beta in planned.betas)
    far = plan({"betas": betas}, policy=4096, rule="sde")
    assert (far.status == "infeasible") == (betas[0] == 0.9)


def test_no_noise_and_no_gradient_are_limits():
    def scale(rule, **noise):
        return plan({"optimizer": "sgd", **noise}, policy=1024, rule=rule).lr_scale

    assert scale("adascale", sigma_sq=0.0, mu_sq=1.0) == 1
    assert scale("adascale", sigma_sq=1.0, mu_sq=0.0) == 4
    assert scale("saturating", noise_scale=0.0) == 1
    assert scale("surge", noise_scale=0.0) == pytest.approx(0.5)
    assert scale("muon", noise_scale=0.0) == 1


def test_the_rule_for_muon_gives_its_sources_example():
    """Noise scale 1000, 256 → 8192: √ 5.66, this 2.09, and Adam's surge .77."""
    known = {"optimizer": "muon", "effective_batch": 256, "noise_scale": 1000.0}
    scales = [plan(known, policy=8192, rule=rule).lr_scale for rule in ("sqrt", "muon", "surge", "auto")]
    assert scales == pytest.approx(
        [5.657, 2.091, 0.773, 2.091**2], abs=2e-3
    )  # auto's is the square, saturating


@pytest.mark.parametrize(
    "optimizer", ["sgd", "lion", "muon", "adamw", "adam", "rmsprop", "lars", "lamb", "adafactor"]
)
def test_auto_bends_where_the_noise_scale_is_known(optimizer):
    """Only the three optimizers tried so (docs/rules.md), and never past the linear rule."""
    usual = "linear" if optimizer == "sgd" else "sqrt"
    known = {"optimizer": optimizer, "effective_batch": 256, "noise_scale": 1000.0}
    for policy in (64, 1024, 8192):
        assert plan({"optimizer": optimizer}, policy=policy).rule == usual
        planned = plan(known, policy=policy)
        bends = optimizer in ("sgd", "lion", "muon")
        assert planned.rule == ("saturating" if bends else usual)
        assert planned.lr_scale == plan(known, policy=policy, rule=planned.rule).lr_scale
        if bends:
            assert planned.lr_scale == pytest.approx((1 + 1000 / 256) / (1 + 1000 / policy), rel=1e-15)
            assert min(1, policy / 256) <= planned.lr_scale <= max(1, policy / 256)
    assert plan(known, policy="keep").rule == "none"


def test_a_value_too_large_for_its_column_is_no_plan():
    huge = plan({"weight_decay": 1e308, "optimizer": "adamw"}, policy=2**20)
    assert huge.status == "infeasible" and Reason.TOO_LARGE in huge.reasons
    slow = profile_of(compute_constant=1e308, compute_per_sample=1e300)
    assert Reason.TOO_LARGE in plan({}, gpus=1, profile=slow).reasons


def test_megatrons_own_ramp():
    ramp = {"effective_batch": 1536, "seq_len": 4096, "ramp": "0:16 2.4B:320 4.8B:1536"}
    planned = plan({**ramp, "duration": "100e9tok", "warmup": "0st"}, gpus=8, policy="keep")
    assert planned.status != "infeasible"
    assert planned.total_steps > 100e9 / 4096 / 1536


def test_the_ways_out_of_a_large_prime_can_be_planned():
    # Of 2^40 − 87 samples, a prime, the divisor above is the batch itself: more GPUs than a cluster may have.
    large = ib.plan(ib.Recipe(effective_batch=2**40 - 87, lr=0.1), 2**20 - 1)
    assert (large.status, large.nearest_world_sizes) == ("infeasible", (1, None))
    assert all(option.status != "infeasible" for option in large.options)
