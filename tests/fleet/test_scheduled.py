"""A fleet's table in `schedule_matrix`: the learning rate at every step is the plan's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isobatch as ib
from reference.schedules import ARGUMENTS

COLUMNS = ["job", "status", *ib.schedules.COLUMNS]
TEXTS = [text for _, text in ARGUMENTS.values() if text is not None] + [
    "multistep(400sp, 100st, 3ep, gamma=0.5)",
    "multistep(64000tok, 90%)",
    "step(2ep)",
    "cosine(until=80000sp)",
    "polynomial(power=2, until=90%)",
    "inverse_sqrt(timescale=50st)",
]
"""Every kind, and lengths in every unit."""


@st.composite
def recipes(draw):
    """Recipes as rows of a table has them.

    Every kind of schedule, lengths in every unit, a minimum and a warmup or none.
    """
    lr = draw(st.sampled_from([0.1, 3e-4, 1.0]))
    return {
        "effective_batch": draw(st.sampled_from([64, 96, 256])),
        "lr": lr,
        "optimizer": draw(st.sampled_from(["sgd", "adamw", "lamb"])),
        "dataset_size": draw(st.sampled_from([1000, 4096, 5001])),
        "seq_len": draw(st.sampled_from([16, 128])),
        "duration": draw(st.sampled_from(["9ep", "700st", "150000sp", "2000000tok"])),
        "warmup": draw(st.sampled_from([None, "20st", "1ep", "5%"])),
        "schedule": draw(st.sampled_from(TEXTS)),
        "min_lr": lr * draw(st.sampled_from([0.0, 0.1])),
        "convention": draw(st.sampled_from(["torch", "megatron", "transformers", "exact"])),
        "sigma_sq": 100.0,
        "mu_sq": 1.0,
        "gpus": 8,
    }


RULES = st.sampled_from(["auto", "linear", "sqrt", "none", "adascale"])
POLICIES = st.sampled_from(["keep", "grow", 128, 512])


def _held(rows, gpus, options):
    """Holds the table's learning rates against each plan's; gives how many rows were planned."""
    jobs = {name: np.array([row[name] for row in rows], dtype=object) for name in rows[0]}
    table = ib.plan_fleet({"job": np.arange(len(rows)), **jobs}, [gpus], columns=COLUMNS, **options)
    plans = []
    for row, status in zip(rows, table["status"].tolist(), strict=True):
        plan = ib.plan(ib.Recipe(**row), gpus, **options)
        assert (plan.status == "infeasible") == (status == "infeasible")
        try:
            plans.append(None if plan.status == "infeasible" else plan.schedule)
        except ib.InputError:  # such as an `until` within the warmup: of the table as of the plan
            with pytest.raises(ib.InputError):
                at = slice(len(plans), len(plans) + 1)
                ib.schedule_matrix({name: column[at] for name, column in table.items()}, range(3))
            plans.append(None)
    is_planned = np.array([plan is not None for plan in plans])
    if is_planned.any():
        matrix = ib.schedule_matrix(
            {name: column[is_planned] for name, column in table.items()}, range(1200), dtype="f8"
        )
        whole = ib.schedule_matrix([plan for plan in plans if plan is not None], range(1200), dtype="f8")
        assert matrix.tobytes() == whole.tobytes()
        for row, schedule in zip(matrix, (plan for plan in plans if plan is not None), strict=True):
            for step in (0, 1, 7, 19, 20, 21, 99, 350, 1199):
                assert abs(row[step] - schedule.at(step)) <= 8 * np.spacing(row.max())
    return int(is_planned.sum())


@settings(max_examples=8, deadline=None)
@given(st.lists(recipes(), min_size=1, max_size=6), st.sampled_from([8, 16, 24, 7]), POLICIES, RULES)
def test_a_fleets_table_has_the_schedule_of_each_plan(rows, gpus, policy, rule):
    _held(rows, gpus, {"policy": policy, "rule": rule})


def test_every_kind():
    base = {
        "lr": 0.4,
        "optimizer": "sgd",
        "dataset_size": 4096,
        "seq_len": 16,
        "duration": "9ep",
        "warmup": "1ep",
    }
    rows = [{**base, "effective_batch": 64, "min_lr": 0.04, "schedule": text, "gpus": 8} for text in TEXTS]
    assert _held(rows, 32, {"policy": "grow"}) == len(rows)


def test_a_tables_schedules_are_its_plans():
    """A warmup from the tuned rate, a minimum, and schedules of three kinds."""
    rows = [
        {
            "effective_batch": 256,
            "lr": 0.1,
            "optimizer": "sgd",
            "duration": "5000st",
            "warmup": "100st",
            "gpus": 8,
            **row,
        }
        for row in (
            {"schedule": "constant", "min_lr": 0.0},
            {"schedule": "cosine", "min_lr": 0.01},
            {"schedule": "multistep(1000st, 3000st)", "min_lr": 0.0},
        )
    ]
    assert _held(rows, 32, {"policy": "grow"}) == 3
    jobs = {name: [row[name] for row in rows] for name in rows[0]}
    table = ib.plan_fleet(
        jobs, [32], policy="grow", columns=["lr", "warmup_lr", "min_lr", "tuned_batch", "schedule"]
    )
    assert table["warmup_lr"].tolist() == [0.1] * 3 and table["min_lr"].tolist() == [0.0, 0.04, 0.0]
    assert table["tuned_batch"].tolist() == [256] * 3 and table["schedule"].tolist() == jobs["schedule"]


def test_the_usual_table_is_refused_with_the_way_out():
    jobs = {"effective_batch": [256], "lr": [0.1], "duration": ["100st"]}
    usual = ib.plan_fleet(jobs, [8])
    assert not {"schedule", "min_lr", "warmup_lr", "tuned_batch"} & usual.keys()
    with pytest.raises(ib.InputError, match=r"schedule is missing: .*columns=isobatch.schedules.COLUMNS"):
        ib.schedule_matrix(usual, range(3))
    # Jobs without a schedule have the recipe's own default.
    table = ib.plan_fleet(jobs, [8], columns=ib.schedules.COLUMNS)
    assert table["schedule"].tolist() == ["cosine"] and table["dataset_size"].tolist() == [-1]


def test_rows_that_have_no_schedule_are_named():
    jobs = {"job": ["a", "b"], "effective_batch": [256, 255], "lr": [0.1, 0.1], "duration": ["100st"] * 2}
    with pytest.raises(
        ib.InputError, match="row 2: lr is not known: the row is infeasible, leave such rows out .job 'b'."
    ):
        ib.schedule_matrix(ib.plan_fleet(jobs, [8], columns=COLUMNS), range(3))
    ramped = {**jobs, "effective_batch": [256, 256], "ramp": [None, "128 128 1000"]}
    table = ib.plan_fleet(ramped, [8], columns=COLUMNS)
    assert table["schedule"].tolist() == ["cosine", ""]
    with pytest.raises(
        ib.InputError, match="row 2: schedule is not known, as of a job with a ramp: give .* its plan"
    ):
        ib.schedule_matrix(table, range(3))


def test_a_column_of_that_name_is_not_taken_for_it():
    jobs = {"effective_batch": [256], "lr": [0.1], "tuned_batch": [1]}
    assert ib.plan_fleet(jobs, [8])["tuned_batch"].tolist() == [1]
    with pytest.raises(
        ib.InputError, match="tuned_batch is a column of the tables and, asked for by name, of the result"
    ):
        ib.plan_fleet(jobs, [8], columns=["tuned_batch"])


def test_the_same_in_files_and_in_arrow(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    jobs = {
        "job": ["a", "b", "c"], "effective_batch": [256, 64, 255], "lr": [0.1, 0.2, 0.1], "duration": ["9ep",
        "500st", "9ep"],
        "schedule": ["multistep(3ep)", None, "cosine"], "dataset_size": [5001, None, 5001], "min_lr": [0.01,
        None, 0.0],
    }  # fmt: skip
    (tmp_path / "jobs").mkdir()
    parquet.write_table(arrow.table(jobs), tmp_path / "jobs" / "jobs.parquet")
    whole = ib.plan_fleet(arrow.table(jobs), [8], columns=COLUMNS)
    assert whole["schedule"].to_pylist() == ["multistep(3ep)", "cosine", "cosine"]
    assert (
        whole["dataset_size"].to_pylist() == [5001, None, 5001] and whole["tuned_batch"].type == arrow.int64()
    )
    ib.plan_files(tmp_path / "jobs", [8], tmp_path / "plans", columns=COLUMNS)
    filed = parquet.read_table(tmp_path / "plans" / "jobs.parquet")
    assert filed.select(COLUMNS).to_pylist() == whole.to_pylist()


def test_where_the_rule_bends_at_the_noise_scale_the_warmup_starts_at_nothing():
    """Linear starts at the tuned learning rate; jobs of both kinds are planned side by side."""
    noise = np.where(np.arange(40) % 2, 5000.0, np.nan)
    jobs = {
        "effective_batch": np.full(40, 256),
        "lr": np.full(40, 0.1),
        "optimizer": np.array(["sgd"] * 40),
        "gpus": np.full(40, 8),
    }
    jobs |= {"duration": np.array(["5000st"] * 40), "warmup": np.array(["100st"] * 40), "noise_scale": noise}
    table = ib.plan_fleet(jobs, [32], policy="grow", columns=["lr", "warmup_lr"])
    assert table["warmup_lr"].tolist() == [0.1, 0.0] * 20
    assert table["lr"][0] == 0.4 and 0.1 < table["lr"][1] < 0.4
