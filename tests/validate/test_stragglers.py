"""A slow rank is told from a host that others use: here with invented windows of time, in test_launch.py with real ones."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from isobatch.validate import Verdict
from isobatch.validate.proofs import machine
from isobatch.validate.proofs.machine import Window, judge_windows

RNG = np.random.default_rng(7)


def verdict(windows):
    proof = judge_windows(windows, "ranks", "work", lambda rank: f"rank {rank}")
    return proof.verdict, proof.diagnosis.text if proof.diagnosis else ""


def quiet(seconds, count=25):
    return [Window(seconds * f, 0.0) for f in RNG.uniform(0.97, 1.03, count)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_always_slower_fails_by_name(ranks):
    windows = [quiet(0.010) for _ in range(ranks - 1)] + [quiet(0.030)]
    found, cause = verdict(windows)
    assert found is Verdict.FAIL
    assert f"slow rank (rank {ranks - 1})" in cause


def test_a_little_slower_is_a_caution():
    found, cause = verdict([quiet(0.015), quiet(0.010)])
    assert found is Verdict.CAUTION
    assert "slow rank (rank 0)" in cause


def test_even_ranks_pass():
    assert verdict([quiet(0.010), quiet(0.011)]) == (Verdict.PASS, "")


def test_what_comes_and_goes_is_noise():
    """Another process shares the core of one rank in three of four windows."""
    burdened = [Window(0.025 if k % 4 else 0.010, 0.0) for k in range(25)]
    assert verdict([burdened, quiet(0.010)])[0] is Verdict.INCONCLUSIVE


def test_a_rank_that_waits_for_its_processor_is_not_slow():
    """Another process takes two thirds of one rank's core, in all windows: the rank itself is as fast as the other."""
    burdened = [Window(0.030, 0.66) for _ in range(25)]
    assert verdict([burdened, quiet(0.010)])[0] is Verdict.INCONCLUSIVE


def test_noise_on_the_others_does_not_hide_a_slow_rank():
    noisy = [Window(0.010 if k % 12 else 0.050, 0.0) for k in range(25)]
    assert verdict([noisy, quiet(0.030)])[0] is Verdict.FAIL


def test_ranks_that_all_wait_are_told_from_a_slow_one():
    """Other programs take both cores; what is left of the time is too little to compare by, and errs by as much as it is."""
    windows = [[Window(0.014, 0.7)] * 25, [Window(0.010, 0.86)] * 25]
    assert verdict(windows)[0] is Verdict.INCONCLUSIVE
    assert verdict([[Window(0.060, 0.7)] * 25, windows[1]])[0] is Verdict.CAUTION


def test_a_slow_rank_is_named_beside_one_that_waits():
    windows = [[Window(0.030, 0.66)] * 25, quiet(0.010), quiet(0.015), quiet(0.010)]
    found, cause = verdict(windows)
    assert found is Verdict.CAUTION
    assert "slow rank (rank 2)" in cause


def test_time_without_a_processor_is_counted():
    """A thread that competes with itself for one processor: two of these processes need more time than they wait."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count what a process waits for")
    processor = min(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    # A process of its own, which inherits the processor: a fork would not do where another library has threads.
    rival = subprocess.Popen([sys.executable, "-uc", "print()\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        rival.stdout.read(1)
        before, begun = machine._threads(), time.perf_counter()
        while time.perf_counter() - begun < 0.4:
            pass
        waited = machine.waited_seconds(before, machine._threads())
    finally:
        rival.kill()
        rival.communicate()
        os.sched_setaffinity(0, allowed)
    assert 0.05 < waited < 0.4
