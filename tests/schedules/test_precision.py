"""How far values are from the exact ones, in 60 digits: what docs/schedules.md says, over every kind.

A step and a schedule's numbers are float64, so that what is asked for is itself known to an ulp. The bound is
therefore on both sides: a value is within a few ulp of the peak of the exact value at some step within 4 ulp
of the one asked for. Where a schedule is steep in one ulp of its step (far out on a clock, or in a decay
shorter than a step) the second part is what counts; elsewhere it changes nothing.
"""

import numpy as np
import pytest

import isobatch as ib
from isobatch import schedules as S
from isobatch.schedules.text import KINDS
from reference import schedules as oracle

pytest.importorskip("mpmath", reason="the exact values need it")
from mpmath import mpf

from reference import precise

STEP_ULP = mpf(2) ** -52


def test_every_kind_is_here():
    assert set(KINDS) <= set(oracle.curves(100, 10))
    assert set(KINDS) == set(oracle.ARGUMENTS)


def off(form, step, value, ulp):
    """How many ulp a value is off at the best step within 4 ulp."""
    value, exact = mpf(float(value)), precise.value(form, step)
    if abs(value - exact) <= ulp:
        return float(abs(value - exact) / ulp)
    moved = [precise.value(form, mpf(step) * (1 + part * 4 * STEP_ULP)) for part in (-1, -0.5, 0, 0.5, 1)]
    return float(max(min(moved) - value, value - max(moved), 0) / ulp)


# Bounds in ulp of the peak; measured worst: 1.0, 1.0, 0.63.
AT, DOUBLE, SINGLE = 4, 8, 1


@pytest.mark.parametrize("total", [50, 2_000, 1_000_003])
@pytest.mark.parametrize("name", oracle.curves(100, 10))
def test_values_are_within_their_bounds(name, total):
    warm = max(3, total // 15)
    body = oracle.curves(total - warm, warm)[name]
    random = np.random.default_rng(7)
    stride = max(1, int(total * 1.2) // 1500)
    for schedule in (body, S.warmup(body, warm)):
        steps = np.array(range(0, int(total * 1.2), stride), float)
        double = ib.schedule_matrix([schedule], range(0, int(total * 1.2), stride), dtype="f8")[0]
        single = ib.schedule_matrix([schedule], range(0, int(total * 1.2), stride))[0]
        fine, coarse = np.spacing(schedule.peak), float(np.spacing(np.float32(schedule.peak)))
        for index in random.choice(len(steps), min(25, len(steps)), replace=False):
            step = float(steps[index])
            assert off(schedule.form, step, schedule.at(step), fine) <= AT
            assert off(schedule.form, step, double[index], fine) <= DOUBLE
            assert off(schedule.form, step, single[index], coarse) <= SINGLE
