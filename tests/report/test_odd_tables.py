"""Tables of other origin, or with only some columns: a page or one line of error, never a traceback."""

from pathlib import Path

import numpy as np
import pytest

import isobatch as ib
from isobatch.report.fleet_page import fleet_page
from isobatch.report.table import plans_of, rows_of
from report.pages import timed_profile

pa = pytest.importorskip("pyarrow")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
JOBS, CLUSTERS = str(EXAMPLES / "jobs.csv"), str(EXAMPLES / "clusters.csv")


@pytest.fixture(scope="module")
def plans():
    jobs = {"job": ["a", "b"], "effective_batch": [256, 512], "lr": [0.1, 0.1], "duration": ["100st"] * 2}
    clusters = {"cluster": ["x", "y"], "nodes": [1, 1], "gpus_per_node": [8, 4]}
    return ib.plan_fleet(pa.table(jobs), pa.table(clusters), profile=timed_profile())


def with_column(table, name, values):
    values = values if isinstance(values, pa.Array) else pa.array(values)
    at = table.schema.get_field_index(name)
    return table.append_column(name, values) if at < 0 else table.set_column(at, name, values)


@pytest.mark.parametrize("name", ["hours", "lr", "world_size", "total_steps"])
def test_an_infinite_result_is_refused_with_its_row(plans, name):
    odd = with_column(plans, name, [1.0, 1.0, float("inf"), 1.0])
    with pytest.raises(ib.InputError, match=f"a.parquet, row 3: {name} must be a finite number, got inf"):
        plans_of(odd, "a.parquet")


def test_an_infinite_number_of_the_jobs_own_is_shown(plans):
    rows = rows_of(plans_of(with_column(plans, "score", [1.0, float("inf"), None, 2.0])), "rows")
    at = list(rows.columns).index("score")
    assert [row[at] for row in rows.rows] == ["1.0", "inf", "", "2.0"]


def test_the_least_numbers_there_are_stay_what_they_are(plans):
    rows = rows_of(plans_of(with_column(plans, "step_seconds", [5e-324, 1e-310, 1e308, 0.0])), "rows")
    assert "" not in [row[list(rows.columns).index("step_seconds")] for row in rows.rows]


def test_a_column_that_is_there_twice(plans):
    double = pa.Table.from_arrays([*plans.columns, plans["job"]], names=[*plans.column_names, "job"])
    with pytest.raises(ib.InputError, match="'job' is listed twice"):
        plans_of(double)


def test_a_reason_that_is_there_twice_is_one():
    table = pa.table({"status": ["infeasible"], "reasons": ["not_divisible;not_divisible"]})
    both = pa.table({"status": ["infeasible"], "reasons": ["not_divisible"]})
    assert plans_of(table).reasons.tolist() == plans_of(both).reasons.tolist()


@pytest.mark.parametrize("left_out", ["world_size", "gpu_hours"])
def test_times_without_their_gpus_are_not_compared(plans, left_out):
    page = fleet_page(plans.drop([left_out]), deadline=1e9)
    figures = {item.label: item for item in page.headlines}
    assert figures["GPU-hours"].value == "unknown"
    assert figures["GPU-hours"].note == f"the table has no {left_out}"
    assert "hours" in page.sections[-1].tables[0].columns
    gone = with_column(plans, left_out, pa.array([None] * plans.num_rows, pa.float64()))
    assert {item.label: item for item in fleet_page(gone).headlines}["GPU-hours"].value == "unknown"


def test_a_row_without_its_gpus_is_left_out_of_the_comparison(plans):
    some = with_column(plans, "world_size", [8, None, 0, 4])
    hours = plans_of(some).spent("hours")
    assert np.isnan(hours).tolist() == [False, True, True, False]
    assert fleet_page(some).headlines[2].value != "unknown"


UNREADABLE = [
    pa.array([2**31 - 1], pa.date32()),
    pa.array([1], pa.timestamp("s", tz="a\x1b[2J")),
    pa.array([[1]], pa.list_(pa.timestamp("s", tz="a\0b"))),
]
"""Cells that no value of Python stands for."""


@pytest.mark.parametrize("cells", UNREADABLE, ids=lambda cells: repr(str(cells.type)))
@pytest.mark.parametrize("name", ["team", "job", "status", "reasons"])
def test_a_column_of_a_kind_that_cannot_be_read_is_named(name, cells):
    table = pa.table({"status": ["ok"], "reasons": [""], "job": ["a"], "lr": [0.1]})
    odd = with_column(table, name, cells)
    with pytest.raises(ib.InputError, match=f"{name} has a cell that cannot be read") as error:
        plans_of(odd, "a.parquet")
    assert (error.value.file, error.value.field) == ("a.parquet", name)
    with pytest.raises(ib.InputError, match=f"{name} has a cell that cannot be read"):
        ib.explain(odd, 0)
    if name == "job":
        with pytest.raises(ib.InputError, match="job has a cell that cannot be read"):
            ib.plan_fleet(pa.table({"job": cells, "effective_batch": [256], "lr": [0.1]}), [8])


@pytest.mark.parametrize("hours", ["9" * 400, "9" * 6000, "true", "-1", '"x"', "[]", "1e999"])
def test_settings_that_no_fleet_wrote_have_no_deadline(plans, hours):
    odd = plans.replace_schema_metadata({b"isobatch.settings": b'{"deadline_hours": %s}' % hours.encode()})
    assert "deadline met" not in [item.label for item in fleet_page(odd).headlines]


def test_settings_too_deep_to_read(plans):
    deep = plans.replace_schema_metadata({b"isobatch.settings": b"[" * 100_000})
    assert plans_of(deep).provenance.settings == {}


def test_a_table_is_read_alike_from_any_file(tmp_path):
    from isobatch.cli import main
    from isobatch.files.read import read_table

    plans = plans_of(ib.plan_fleet(JOBS, CLUSTERS))
    for suffix in ("parquet", "csv", "jsonl"):
        file = tmp_path / f"plans.{suffix}"
        assert main(["fleet", JOBS, CLUSTERS, "-o", str(file)]) == 0
        result = plans_of(read_table(file))
        assert (result.status == plans.status).all() and (result.reasons == plans.reasons).all()
        for name in ("lr", "world_size", "nearest_batch", "hours"):
            np.testing.assert_array_equal(result.number(name), plans.number(name))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"status": ["ok"]}, "has no column 'reasons'"),
        ({"status": ["fine"], "reasons": [[]]}, "status must be ok, caution or infeasible, got 'fine'"),
        ({"status": ["ok"], "reasons": ["odd"]},
            "reasons must be names of reasons, as a fleet's table has them"),
        ({"status": ["ok"], "reasons": [""], "lr": ["x"]}, "column 'lr' must have numbers"),
    ],
)  # fmt: skip
def test_bad_fleets_are_refused(columns, message):
    with pytest.raises(ib.InputError, match=message):
        plans_of(pa.table(columns))
