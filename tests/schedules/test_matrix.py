"""ib.schedule_matrix against Schedule.at."""

import multiprocessing
import sys

import numpy as np
import pytest

import isobatch as ib
from isobatch import schedules as S
from isobatch.errors import InputError
from reference import schedules as oracle


def every_kind(total=2000, warm=130):
    rest = total - warm
    bodies = [
        # A restart on a clock falls to either side of a rounding: test_precision.py knows.
        *(curve for name, curve in oracle.curves(rest, warm).items() if "cycles" not in name),
        S.polynomial(0.1, rest, 2),
        S.exponential(0.1, 1.0005),
        S.step(0.1, 300, 0.3),
        S.cosine_restarts(0.1, 100, 2, 0.8),
        S.timm.WSDLRScheduler(0.1, rest, 300, lr_min=0.01, stable_fn="rsqrt", stable_timescale=100),
        S.timm.CosineLRScheduler(0.1, 300, cycle_limit=3, cycle_mul=1.5, k_decay=1.5),
        S.torch.CyclicLR(0.0, 0.01, 0.1, step_size_up=70, step_size_down=30, mode="triangular2"),
        S.torch.CyclicLR(0.0, 0.01, 0.1, step_size_up=70, mode="exp_range", gamma=0.999, quirks=False),
        S.torch.CosineAnnealingLR(0.1, 333),
        S.transformers.get_scheduler(
            "cosine",
            lr=0.1,
            num_warmup_steps=50,
            num_training_steps=total,
            scheduler_specific_kwargs={"num_cycles": 1.3},
        ),
        S.torch.OneCycleLR(0.1, 0.1, total_steps=5000),
        S.megatron.OptimizerParamScheduler(
            max_lr=0.1,
            lr_warmup_steps=1600,
            lr_decay_steps=30_000,
            lr_decay_style="inverse-square-root",
            increment=16,
        ),
    ]
    return [*bodies, *(S.warmup(body, warm) for body in bodies)]


def within(schedules, steps, matrix, ulps):
    for schedule, row in zip(schedules, matrix, strict=True):
        expected = schedule.values(np.asarray(steps))
        ulp = np.spacing(matrix.dtype.type(max(schedule.peak, expected.max())))
        off = np.abs(row.astype(np.float64) - expected).max() / ulp
        assert off <= ulps, f"{schedule}: {off} ulp"


STEPS = [
    range(2300),
    range(0, 2300, 7),
    range(1990, 2010),
    range(137, 138),
    range(0),
    np.arange(2300, dtype=np.int32),
    np.linspace(0, 2299, 1501),
    np.repeat(np.arange(0, 2000, 100), 3),
    np.random.default_rng(0).permutation(2300),
]


@pytest.mark.parametrize("steps", STEPS, ids=lambda s: f"{type(s).__name__}{len(s)}")
def test_every_kind_in_one_matrix(steps):
    schedules = every_kind()
    single = ib.schedule_matrix(schedules, steps)
    assert single.dtype == np.float32 and single.shape == (len(schedules), len(steps))
    double = ib.schedule_matrix(schedules, steps, dtype=np.float64)
    if len(steps):
        within(schedules, steps, single, 1)
        within(schedules, steps, double, 8)
        assert (single >= 0).all()


@pytest.mark.parametrize("power", [0.5, 1.5, 2, 2.5, 4, 6, 9, 10, 15])
def test_steep_powers(power):
    # Peaks just below a power of two have the smallest ulp for their size.
    schedules = [S.polynomial(peak, 12_345, power) for peak in (0.0626, 0.1, 0.99)]
    steps = range(12_400)
    within(schedules, steps, ib.schedule_matrix(schedules, steps), 0.9)


@pytest.mark.parametrize("total", [40, 150, 1_000, 4_097, 70_001])
@pytest.mark.parametrize("stride", [1, 3])
def test_curves_begun_anywhere_stay_between_their_ends(total, stride):
    peak = np.nextafter(np.float32(0.125), np.float32(0)).item()  # The smallest ulp for its size
    schedules = [
        S.cosine(peak, total),
        S.cosine(peak, total, 0.01),
        S.exponential(peak, 0.001, total),
        S.tanh(peak, total),
        S.polynomial(peak, total, 0.5, 0.01),
        S.one_minus_sqrt(peak, total, 0.01),
        S.table((peak / (1 + np.arange(total))).tolist()),
        S.cosine_restarts(peak, total // 4 + 1, 1.5, 0.8),
    ]
    for first in (0, 1, total // 3, total - 5):
        steps = range(first, total + 40, stride)
        single = ib.schedule_matrix(schedules, steps)
        within(schedules, steps, single, 0.9)
        assert (single >= 0).all() and (single <= np.float32(peak)).all()
        alone = np.vstack([ib.schedule_matrix([schedule], steps) for schedule in schedules])
        assert alone.tobytes() == single.tobytes()


def test_long_rows_are_cut_and_do_not_drift():
    schedules = [
        S.warmup(S.cosine(0.3, 999_000), 1000),
        S.linear(0.3, 1_000_000),
        S.polynomial(0.3, 1_000_000, 0.5),
    ]
    steps = range(1_000_001)
    within(schedules, steps, ib.schedule_matrix(schedules, steps), 1)
    within(schedules[:2], steps, ib.schedule_matrix(schedules[:2], steps, dtype=np.float64), 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_are_the_same_wherever_memory_begins(dtype):
    rows, steps = every_kind(), range(1999)
    expected = ib.schedule_matrix(rows, steps, dtype)
    memory = np.empty(expected.size + 16, dtype)
    for begin in range(16):  # values from the start of a line of 64 bytes, or of two
        out = memory[begin : begin + expected.size].reshape(expected.shape)
        assert ib.schedule_matrix(rows, steps, out=out).tobytes() == expected.tobytes()


def test_out_is_filled_and_returned():
    schedules, out = [S.linear(1.0, 10), S.constant(2.0)], np.empty((2, 5))
    assert ib.schedule_matrix(schedules, range(5), out=out) is out
    assert out.tolist() == [[1.0, 0.9, 0.8, 0.7, 0.6], [2.0] * 5]
    assert ib.schedule_matrix(schedules[0], range(5)).shape == (1, 5)
    assert ib.schedule_matrix([], range(5)).shape == (0, 5)


class Plan:
    schedule = S.linear(1.0, 10)


def test_plans_and_columns():
    assert ib.schedule_matrix([Plan()], range(3)).shape == (1, 3)
    table = {
        "lr": np.array([1.0, 0.5]),
        "total_steps": np.array([100, 200]),
        "warmup_steps": [10, 0],
        "schedule": ["cosine", "multistep(3ep)"],
        "steps_per_epoch": [10, 20],
        "min_lr": [0.0, 0.0],
        "warmup_lr": [0.0, 0.0],
    }
    values = ib.schedule_matrix(table, range(0, 200, 10), dtype="f8")
    assert values[0].tolist() == S.warmup(S.cosine(1.0, 90), 10).values(np.arange(0, 200, 10)).tolist()
    assert values[1].tolist() == [0.5] * 6 + [0.05] * 14
    arrow = pytest.importorskip("pyarrow", reason="a fleet's table is an Arrow table")
    assert ib.schedule_matrix(arrow.table(table), range(0, 200, 10), dtype="f8").tolist() == values.tolist()
    with pytest.raises(InputError, match="row 2: unknown schedule 'cubic'"):
        ib.schedule_matrix({**table, "schedule": ["cosine", "cubic"]}, range(3))
    with pytest.raises(InputError, match="must have one value or"):
        ib.schedule_matrix({**table, "warmup_steps": [1, 2, 3]}, range(3))


ROW = {
    "lr": 0.1,
    "total_steps": 100,
    "warmup_steps": 0,
    "schedule": "cosine",
    "min_lr": 0.0,
    "warmup_lr": 0.0,
}


@pytest.mark.parametrize("name", ROW)
def test_nothing_is_filled_in(name):
    table = {column: values for column, values in ROW.items() if column != name}
    with pytest.raises(InputError, match=rf"^{name} is missing: .*plan_fleet\(.*isobatch.schedules.COLUMNS"):
        ib.schedule_matrix(table, range(3))


def test_lengths_that_no_column_says():
    at_the_end = {**ROW, "lr": [1.0], "schedule": "step(50st, gamma=0.5)"}
    with pytest.raises(
        InputError, match="row 1: effective_batch is missing: the schedule has a length in st"
    ):
        ib.schedule_matrix(at_the_end, range(3))
    with pytest.raises(InputError, match="row 1: tuned_batch is missing"):
        ib.schedule_matrix({**at_the_end, "effective_batch": 16}, range(3))
    whole = {**at_the_end, "effective_batch": 16, "tuned_batch": 8}
    assert ib.schedule_matrix(whole, range(20, 30))[0].tolist() == [1.0] * 5 + [0.5] * 5


@pytest.mark.parametrize(
    ("slip", "name"),
    [("schedul", "schedule"), ("tuned_bacth", "tuned_batch"), ("warmup_step", "warmup_steps")],
)
def test_a_misspelt_column_is_not_ignored(slip, name):
    table = {column: values for column, values in ROW.items() if column != name}
    with pytest.raises(InputError, match=f"'{slip}' is not read: did you mean '{name}'"):
        ib.schedule_matrix({**table, slip: ["constant"]}, range(3))
    rest = {**ROW, "samples_per_epoch": [1], "steps_over_least": [1.0], "team": ["vision"]}
    assert ib.schedule_matrix(rest, range(3)).tolist() == ib.schedule_matrix(ROW, range(3)).tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lr": [0.1, float("nan")]},
        "row 2: lr is not known: the row is infeasible, leave such rows out .job 'b'."),
        ({"lr": [0.1, None]}, "row 2: lr is not known: the row is infeasible"),
        ({"total_steps": [9, -1]}, "row 2: total_steps is not known: the job needs a duration"),
        ({"schedule": ["cosine", ""]}, "row 2: schedule is not known, as of a job with a ramp"),
    ],
)  # fmt: skip
def test_a_row_without_a_schedule_is_named(change, says):
    with pytest.raises(InputError, match=says):
        ib.schedule_matrix({**ROW, "job": ["a", "b"], **change}, range(3))


def _read_only(shape):
    out = np.ones(shape, np.float32)
    out.flags.writeable = False
    return out


OUTS = {
    "rows": np.ones((3, 5), np.float32),
    "columns": np.ones((2, 6), np.float32),
    "rank": np.ones(10, np.float32),
    "half": np.ones((2, 5), np.float16),
    "int": np.ones((2, 5), np.int64),
    "order": np.ones((2, 5), ">f4" if sys.byteorder == "little" else "<f4"),
    "fortran": np.ones((5, 2), np.float32).T,
    "strides": np.ones((2, 10), np.float32)[:, ::2],
    "unaligned": np.frombuffer(bytearray(44), np.uint8)[1:41].view(np.float32).reshape(2, 5),
    "read-only": _read_only((2, 5)),
    "list": [[0.0] * 5] * 2,
}


@pytest.mark.parametrize("name", OUTS)
def test_an_out_that_does_not_fit(name):
    with pytest.raises(InputError) as error:
        ib.schedule_matrix([S.constant(0.1), S.linear(0.1, 5)], range(5), out=OUTS[name])
    assert error.value.field == "out"


@pytest.mark.parametrize(
    "steps",
    [
        [0, float("nan")],
        [0, -1],
        [0, 2.0**53],
        range(-1, 3),
        range(2**53 - 1, 2**53 + 1),
        [[1, 2]],
        "12",
        [1, "a"],
        [1j],
        [10**400],
        [0, 11],
        range(12),
    ],
    ids=str,
)
def test_bad_steps_write_nothing(steps):
    schedules = [S.constant(0.1), S.torch.OneCycleLR(0.1, 1.0, total_steps=10)]
    out = np.full((2, len(steps)), 7.0)
    with pytest.raises(InputError) as error:
        ib.schedule_matrix(schedules, steps, out=out)
    assert error.value.field in ("steps", "out")
    assert (out == 7).all()


def test_other_bad_arguments():
    with pytest.raises(InputError, match="dtype must be float32 or float64, got 'int32'"):
        ib.schedule_matrix([S.constant(0.1)], range(3), dtype=np.int32)
    with pytest.raises(InputError, match="row 2: schedules must be schedules or plans, got a str"):
        ib.schedule_matrix([S.constant(0.1), "cosine"], range(3))


def _child(queue):
    queue.put(ib.schedule_matrix([S.cosine(1.0, 100)] * 40, range(2000)).sum())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_forked_child_does_not_hang():
    expected = ib.schedule_matrix([S.cosine(1.0, 100)] * 40, range(2000)).sum()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == expected
    child.join(timeout=60)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    "name", ["steps_per_epoch", "dataset_size", "seq_len", "effective_batch", "tuned_batch"]
)
def test_sizes_of_units_are_numbers(name):
    table = {**ROW, "schedule": ["multistep(30ep, 60ep)"], name: ["16 16"]}
    with pytest.raises(ib.InputError, match=f"row 1: {name} must be a number above 0, got the text '16 16'"):
        ib.schedule_matrix(table, range(5))
