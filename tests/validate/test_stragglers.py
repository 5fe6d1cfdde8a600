"""A slow rank beside a host that others use, by composed windows of time; real ones: test_launch.py."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from isobatch.validate import Verdict
from isobatch.validate.proofs.machine import judge_windows

PULSE = SimpleNamespace(who="rank {}".format)
GROUP = SimpleNamespace(pulse=PULSE, device=SimpleNamespace(type="cpu"))
RNG = np.random.default_rng(7)


def verdict(windows):
    proof = judge_windows(GROUP, np.array(windows), "ranks", "work")
    return proof.verdict, proof.diagnosis.text if proof.diagnosis else ""


def quiet(seconds, count=25):
    return [seconds * f for f in RNG.uniform(0.97, 1.03, count)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_always_slower_fails_by_name(ranks):
    windows = [quiet(0.010) for _ in range(ranks - 1)] + [quiet(0.030)]
    result, cause = verdict(windows)
    assert result is Verdict.FAIL
    assert f"slow rank (rank {ranks - 1})" in cause


def test_a_little_slower_is_a_caution():
    result, cause = verdict([quiet(0.015), quiet(0.010)])
    assert result is Verdict.CAUTION
    assert "slow rank (rank 0)" in cause


def test_even_ranks_pass():
    assert verdict([quiet(0.010), quiet(0.011)]) == (Verdict.PASS, "")


def test_intermittent_delays_are_noise():
    """Another process shares the core of one rank in three of four windows."""
    burdened = [0.025 if k % 4 else 0.010 for k in range(25)]
    assert verdict([burdened, quiet(0.010)])[0] is Verdict.INCONCLUSIVE


def test_noise_on_the_others_does_not_hide_a_slow_rank():
    noisy = [0.010 if k % 12 else 0.050 for k in range(25)]
    assert verdict([noisy, quiet(0.030)])[0] is Verdict.FAIL
