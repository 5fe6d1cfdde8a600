"""Laws of all schedules; `HYPOTHESIS_PROFILE=thorough` looks for longer."""

import copy
import pickle
import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import isobatch as ib
from isobatch import schedules as S
from isobatch.errors import InputError

X = np.concatenate([np.arange(0, 140), np.linspace(0, 139, 333)])
RATE = st.floats(1e-6, 10.0)
STEPS = st.integers(2, 200)
WILD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**60), 2**60),
    st.sampled_from([0, 1, -1, 0.5, 1e-300, 1e300, 2.0**53, 2.0**-30]),
)


def grown(children):
    return st.one_of(
        st.builds(S.warmup, children, st.integers(0, 50)),
        st.builds(lambda a, b, x: S.join([a, b], [x]), children, children, STEPS),
        st.builds(S.product, children, leaf),
        st.builds(lambda s, factor: s.scaled(factor), children, st.floats(0, 3)),
        st.builds(
            lambda s, x, k: s.with_clock([(0, 0), (x, x), (x + 1, x + k)]), children, STEPS, st.floats(0.3, 4)
        ),
    )


leaf = st.one_of(
    st.builds(S.constant, RATE),
    st.builds(S.linear, RATE, STEPS),
    st.builds(S.cosine, RATE, STEPS, RATE),
    st.builds(S.polynomial, RATE, STEPS, st.sampled_from([0.5, 1.7, 2.0, 3.0])),
    st.builds(S.exponential, RATE, st.floats(0.9, 1.01)),
    st.builds(S.step, RATE, STEPS, st.floats(0.1, 1.0)),
    st.builds(S.multistep, RATE, st.lists(STEPS, max_size=4).map(sorted), st.floats(0.1, 1.0)),
    st.builds(S.inverse_sqrt, RATE, STEPS),
    st.builds(S.rex, RATE, STEPS),
    st.builds(S.tanh, RATE, STEPS),
    st.builds(S.one_minus_sqrt, RATE, STEPS),
    st.builds(S.cosine_restarts, RATE, STEPS, st.sampled_from([1.0, 1.5, 2.0]), st.sampled_from([1.0, 0.5])),
    st.builds(S.table, st.lists(RATE, min_size=1, max_size=20)),
)
schedules = st.recursive(leaf, grown, max_leaves=5)
steps = st.builds(
    lambda first, count, stride: range(first, first + count * stride, stride),
    st.integers(0, 300),
    st.integers(1, 400),
    st.integers(1, 9),
)


@given(schedules, steps, st.randoms())
def test_random_access_is_sequential(schedule, steps, random):
    """A value depends on its step alone, not on other steps of the call."""
    values = schedule.values(steps)
    for index in random.sample(range(len(steps)), min(9, len(steps))):
        assert schedule.at(steps[index]) == values[index]
    shuffled = random.sample(range(len(steps)), len(steps))
    assert (schedule.values([steps[i] for i in shuffled]) == values[shuffled]).all()


def near(schedule, steps, matrix, ulps):
    """Tells if a row is within `ulps` of the largest value, for steps known to 4 ulp."""
    steps = np.asarray(steps, float)
    exact = [schedule.values(np.maximum(steps * (1 + part * 2.0**-50), 0)) for part in (-1, 0, 1)]
    low, high = np.min(exact, 0), np.max(exact, 0)
    # A slope among the subnormals is rounded to one of them, and multiplied by the steps.
    kind = matrix.dtype.type
    slack = ulps * float(np.spacing(max(kind(max(schedule.peak, high.max())), 64 * np.finfo(kind).tiny)))
    row = matrix[0].astype(float)
    return bool(((row >= low - slack) & (row <= high + slack)).all())


@given(schedules, steps)
def test_the_matrix_is_what_at_is(schedule, steps):
    for given_steps in (steps, [*steps][::-1], np.array(steps) + 0.5):
        assert near(schedule, given_steps, ib.schedule_matrix([schedule], given_steps), 1)
        assert near(schedule, given_steps, ib.schedule_matrix([schedule], given_steps, dtype="f8"), 8)


@given(st.lists(schedules, min_size=1, max_size=4), steps)
def test_a_row_does_not_depend_on_the_others(rows, steps):
    matrix = ib.schedule_matrix(rows, steps)
    for row, schedule in zip(matrix, rows, strict=True):
        assert row.tobytes() == ib.schedule_matrix([schedule], steps).tobytes()


@settings(max_examples=150, deadline=None)
@given(schedules)
def test_any_composition_is_a_value(schedule):
    values = schedule.values(X)
    assert np.isfinite(values).all() and (values >= 0).all()
    assert [schedule.at(x) for x in X[::37]] == values[::37].tolist()
    for another in (
        S.Schedule.from_json(schedule.to_json()),
        pickle.loads(pickle.dumps(schedule)),
        copy.copy(schedule),
    ):
        assert another == schedule and hash(another) == hash(schedule)
        assert another.values(X).tobytes() == values.tobytes()
    assert repr(schedule).startswith("Schedule(")


@settings(max_examples=100, deadline=None)
@given(schedules, st.integers(1, 100), st.integers(1, 100), st.floats(0.3, 4), st.floats(0.3, 4))
def test_clocks_compose(schedule, x, y, k, m):
    once, twice = [(0, 0), (x, x), (x + 1, x + k)], [(0, 0), (y, y), (y + 2, y + 2 * m)]
    bent = schedule.with_clock(once).with_clock(twice)
    steps = np.arange(0, 150, 0.5)

    def read(points, at):
        (x0, y0), (x1, y1), (x2, y2) = points
        return np.where(at < x1, y0 + (at - x0), y1 + (at - x1) * (y2 - y1) / (x2 - x1))

    inner = read(once, read(twice, steps))
    # Within a rounding of the clock; a jump of the schedule may fall to either side of it.
    near = [schedule.values(np.maximum(inner * (1 + off), 0)) for off in (-1e-12, 0, 1e-12)]
    low, high = np.min(near, 0), np.max(near, 0)
    slack = 1e-9 * max(high.max(), 1e-300)
    row = bent.values(steps)
    assert ((row >= low - slack) & (row <= high + slack)).all()


@given(
    st.sampled_from(
        [
            S.linear,
            S.cosine,
            S.polynomial,
            S.one_minus_sqrt,
            S.rex,
            S.tanh,
            S.exponential,
            S.inverse_sqrt,
            S.step,
            S.wsd,
            S.trapezoid,
            S.one_cycle,
            S.cosine_restarts,
            S.vaswani,
            S.goyal,
        ]
    ),
    st.lists(WILD, min_size=2, max_size=5),
    st.lists(WILD, min_size=1, max_size=4),
)
def test_a_value_is_finite_or_an_input_error(build, arguments, steps):
    try:
        schedule = build(*arguments)
    except (InputError, TypeError):
        return
    for step in steps:
        assert finite_or_refused(schedule.at, step)
    assert finite_or_refused(ib.schedule_matrix, [schedule], range(50))


def test_a_line_that_is_over_within_a_hair_of_a_step():
    steep = S.linear(0.0, 1e-300, 1.8e8)
    assert ib.schedule_matrix([steep], range(50), dtype="f8")[0].tolist() == [0.0, *[1.8e8] * 49]


def finite_or_refused(call, *arguments):
    try:
        return np.isfinite(call(*arguments)).all()
    except InputError as error:
        return error.field == "steps"


def test_one_thread_is_many():
    program = (
        "import hashlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import isobatch as ib\n"
        "from test_matrix import every_kind\n"
        "for dtype in ('f4', 'f8'):\n"
        "    rows = [row for row in every_kind() if row.form.last is None]\n"
        "    matrix = ib.schedule_matrix(rows, range(40_000), dtype=dtype)\n"
        "    print(hashlib.sha256(matrix.tobytes()).hexdigest())\n"
    )
    folder = __file__.rpartition("/")[0]
    kinds = {
        subprocess.run(
            [sys.executable, "-c", program, folder],
            env={"RAYON_NUM_THREADS": threads, "PYTHONPATH": f"{folder}/.."},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(kinds) == 1
