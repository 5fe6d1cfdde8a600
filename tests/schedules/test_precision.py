"""How far values are from the exact ones, in 60 digits: what docs/schedules.md says, over every kind.

A step and a schedule's numbers are float64, so that what is asked for is itself known to an ulp. The bound is therefore
on both sides: a value is within a few ulp of the peak of the exact value at some step within 4 ulp of the one asked
for. Where a schedule is steep in one ulp of its step (far out on a clock, or in a decay shorter than a step) the
second part is what counts; elsewhere it changes nothing.
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


def bodies(left, warm):
    # A kind without a line here is measured as its oracle has it.
    usual = {
        kind: getattr(S, kind)(oracle.FIRST.get(kind, 0.1), **given)
        for kind, (given, _) in oracle.ARGUMENTS.items()
    }
    return usual | {
        "constant": S.constant(0.1),
        "cosine": S.cosine(0.1, left, 0.003),
        "cosine_restarts": S.cosine_restarts(0.1, left // 20 + 1, 1.3, 0.8),
        "exponential": S.exponential(0.1, 0.01, left),
        "goyal": S.goyal(0.1, left / 90),
        "inverse_sqrt": S.inverse_sqrt(0.1, warm),
        "linear": S.linear(0.1, left),
        "linear_to_zero": S.linear_to_zero(0.1, left),
        "multistep": S.multistep(0.1, [left // 3, left // 2]),
        "one_cycle": S.one_cycle(0.1, left, left // 3),
        "one_minus_sqrt": S.one_minus_sqrt(0.1, left, 0.001),
        "polynomial": S.polynomial(0.1, left, 0.5),
        "rex": S.rex(0.1, left),
        "step": S.step(0.1, 2.4, 0.97),
        "table": S.table(np.linspace(0.1, 0.02, 77).tolist()),
        "tanh": S.tanh(0.1, left),
        "trapezoid": S.trapezoid(0.1, left, warm, warm),
        "vaswani": S.vaswani(512, warm),
        "wsd": S.wsd(0.1, left, left // 5, "rex"),
        # Beside the kinds, what was off or may be.
        "polynomial 1.7": S.polynomial(0.1, left, 1.7, 0.01),
        "growing": S.exponential(0.1, 2.0, left),
        "a decay shorter than a step": S.wsd(1000, 10, 0.0001),
        "a bent clock": S.cosine(0.1, left).with_clock([(0, 0), (left // 3, left // 3), (left, 3 * left)]),
        "cycles on a clock": S.cosine_restarts(0.1, 50).with_clock([(0, 0), (1, 1.37)]),
        "growing cycles on a clock": S.cosine_restarts(0.1, 50, 1.5).with_clock(
            [(0, 0), (7, 9.1), (20, 31.7)]
        ),
        "a product": S.product(S.cosine(0.1, left), S.step(1.0, 200, 0.5), S.exponential(1.0, 0.999)),
    }


def test_every_kind_is_here():
    assert set(KINDS) <= set(bodies(100, 10))
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
@pytest.mark.parametrize("name", bodies(100, 10))
def test_values_are_within_their_bounds(name, total):
    warm = max(3, total // 15)
    body = bodies(total - warm, warm)[name]
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
