"""Schedules: random access is the sequence, the matrix is the schedule, in any order, on any threads."""

import pickle
import random
from typing import Any

import numpy as np

import isobatch as ib

S = ib.schedules


def check_curves(seed: int, schedules: int, steps: int = 257) -> int:
    """Random schedules at random steps: bulk against one by one, float32 and float64."""
    draw = random.Random(seed)
    plans = [_schedule(draw) for _ in range(schedules)]
    length = draw.choice([1, 50, 1000, 10**6, 2**40])
    end = min([length, *(int(s.end) for s in plans if s.end is not None)])
    even = range(draw.randint(0, end), end + 1, max(1, end // steps))[:steps]
    some = sorted(draw.randint(0, end) for _ in range(steps))
    mixed = draw.sample(some, len(some))
    for columns in (even, some, mixed, [x + 0.5 for x in some if x < end] or [0]):
        listed = [float(x) for x in columns]
        single = ib.schedule_matrix(plans, columns, dtype=np.float32)
        double = ib.schedule_matrix(plans, columns, dtype=np.float64)
        for row, schedule in enumerate(plans):
            expected = np.array([schedule.at(x) for x in listed])
            case = f"seed {seed}: {schedule!r} at {columns if isinstance(columns, range) else listed[:4]}"
            assert np.isfinite(expected).all(), f"not finite: {case}"
            assert np.array_equal(schedule.values(listed), expected), f"values are not at: {case}"
            peak = max(abs(schedule.peak), np.abs(expected).max(initial=0.0))
            off = np.abs(double[row] - expected).max(initial=0.0) / np.spacing(peak)
            assert off <= 8, f"float64 is off by {off:.0f} ulp of the peak: {case}"
            off = np.abs(single[row] - expected).max(initial=0.0) / float(np.spacing(np.float32(peak)))
            assert off <= 1.01, f"float32 is off by {off:.2f} ulp of the peak: {case}"
        order = np.array(draw.sample(range(len(listed)), len(listed)), dtype=np.int64)
        again = ib.schedule_matrix(plans, np.array(listed)[order], dtype=np.float64)
        assert np.allclose(
            again, double[:, order], rtol=0, atol=8 * max(np.spacing(abs(s.peak)) for s in plans)
        ), f"seed {seed}"
    for schedule in plans:
        assert S.Schedule.from_json(schedule.to_json()) == schedule, f"load(save): {schedule!r}"
        assert pickle.loads(pickle.dumps(schedule)) == schedule, f"pickle: {schedule!r}"
    return schedules


def _schedule(draw: random.Random) -> Any:
    lr, steps = 10 ** draw.uniform(-5, 1), draw.choice([1, 7, 100, 5000, 10**6])
    end = draw.choice([0.0, lr / 10])
    kinds = [
        lambda: S.constant(lr),
        lambda: S.linear(lr, steps, end=end),
        lambda: S.cosine(lr, steps, end=end),
        lambda: S.polynomial(lr, steps, power=draw.choice([0.5, 1.0, 2.0, 3.7]), end=end),
        lambda: S.one_minus_sqrt(lr, steps, end=end),
        lambda: S.rex(lr, steps, end=end),
        lambda: S.tanh(lr, steps, end=end),
        lambda: S.exponential(lr, draw.choice([0.5, 0.97, 0.9999]), every=draw.choice([1.0, 10.0, 333.0])),
        lambda: S.step(lr, draw.choice([1, 30, 777]), gamma=draw.choice([0.1, 0.5])),
        lambda: S.multistep(lr, sorted(draw.sample(range(1, 10**4), 3)), gamma=0.1),
        lambda: S.inverse_sqrt(lr, draw.choice([1, 100, 10**4])),
        lambda: S.wsd(lr, steps, draw.randint(1, steps), end=end),
        lambda: S.one_cycle(lr, steps + 1, draw.randint(1, steps), start=lr / 25, end=end),
        lambda: S.cosine_restarts(lr, draw.choice([3, 50, 1000]), draw.choice([1.0, 1.5, 2.0]),
            decay=draw.choice([1.0, 0.7]), end=end),
    ]  # fmt: skip
    schedule = draw.choice(kinds)()
    if draw.random() < 0.4:
        schedule = S.warmup(schedule, draw.choice([1, 10, 2000]), start=draw.choice([0.0, lr / 3]))
    if draw.random() < 0.2:
        schedule = schedule.scaled(10 ** draw.uniform(-3, 3))
    return schedule
