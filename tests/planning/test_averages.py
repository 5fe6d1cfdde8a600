"""Values beside the learning rate, and their change with the run's length."""

import math
from fractions import Fraction

import pytest

import isobatch as ib

R = ib.Reason
KS = [Fraction(1, 32), Fraction(1, 8), Fraction(1, 2), 2, 4, 10, 16, 32]


def recipe(**changes):
    fields = {"effective_batch": 1024, "lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "duration": "1000st"}
    return ib.Recipe(**fields | changes)


def planned(k, *, settings=None, **changes):
    return ib.plan(recipe(**changes), 1, policy=int(1024 * k), **(settings or {}))


def near(value, want):
    return math.isclose(value, want, rel_tol=1e-15)


def test_sde_has_a_cliff_where_sde_smooth_has_none():
    stuck = planned(16, settings={"rule": "sde"})
    assert R.BETA_NOT_POSITIVE in stuck.reasons
    assert stuck.options[0].settings.rule == "sde_smooth"
    # To first order in k(1 − β) both are the same.
    betas = (1 - 1e-6, 1 - 1e-7)
    smooth, sde = (planned(16, betas=betas, settings={"rule": name}) for name in ("sde_smooth", "sde"))
    assert abs(smooth.beta1 - sde.beta1) < 2e-10 and abs(smooth.beta2 - sde.beta2) < 2e-12


@pytest.mark.parametrize("k", KS)
def test_a_floor_under_beta2(k):
    free = planned(k, settings={"beta2_rule": "half_life"})
    floored = planned(k, settings={"beta2_rule": "half_life:0.9"})
    assert floored.beta2 == max(free.beta2, 0.9)
    assert (R.BETA2_LOW in free.reasons, R.BETA2_LOW in floored.reasons) == (free.beta2 < 0.9, False)
    assert ("beta2 is at its floor of 0.9" in floored.explain()) == (free.beta2 < 0.9)


def test_muons_decay_moves_on_request_alone():
    muon = {"optimizer": "muon", "weight_decay": 0.1}
    assert planned(16, **muon).weight_decay == 0.1
    # nanochat: λ·√(B/Bref)·(Dref/D)
    muon["decay"] = "sqrt"
    moved = planned(16, **muon)
    assert near(moved.weight_decay, 0.4) and R.MUON_DECAY in moved.reasons
    assert "nanochat" in moved.explain()
    # Its learning rate stays with the length; where it is halved here, 1/(ηλ) is the same part of the run all
    # the same.
    longer = {"duration_scale": "4.0^0.5"}
    assert near(planned(16, **muon, settings=longer).weight_decay, 0.2)
    # Whatever the rule: its formula has no learning rate in it.
    by_rule = planned(16, **muon, noise_scale=5000.0, settings={"rule": "muon"})
    assert near(by_rule.weight_decay, 0.4)


def test_another_length_changes_keep_too_and_says_so():
    plan = ib.plan(recipe(), 1, duration_scale="4.0^0.5")
    assert (plan.lr, plan.effective_batch) == (0.5e-3, 1024)
    assert "contested" in plan.explain()
    assert "0.0005" in plan.explain() or "5e-4" in plan.explain()
    assert "Unchanged: batch size, learning rate" not in plan.explain()


def test_another_length_alone_changes_nothing_and_is_a_caution():
    plain, longer = ib.plan(recipe(), 1), ib.plan(recipe(), 1, duration_scale="4.0")
    assert longer.lr == plain.lr and set(longer.reasons) - set(plain.reasons) == {R.DURATION_MOVED}


def test_no_caution_of_a_rule_comes_from_the_length():
    plan = ib.plan(recipe(optimizer="lion"), 1, policy=1024, rule="sqrt", duration_scale="4.0^0.5")
    assert R.RULE_ASSUMED not in plan.reasons and R.DURATION_MOVED in plan.reasons
