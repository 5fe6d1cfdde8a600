"""What would fix most rows: the table's own count is what planning again gives."""

from pathlib import Path

import numpy as np
import pytest

import isobatch as ib
from isobatch.report.fixes import TOLERANCES, by_planning, from_table, summary
from isobatch.report.table import plans_of

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")


EXAMPLES = Path(__file__).parent.parent.parent / "examples"
JOBS, CLUSTERS = str(EXAMPLES / "jobs.csv"), str(EXAMPLES / "clusters.csv")


def feasible(**settings):
    table = ib.plan_fleet(JOBS, CLUSTERS, columns=["status"], **settings)
    return np.array(table["status"].to_pylist()) != "infeasible"


@pytest.fixture(scope="module")
def plans():
    return plans_of(ib.plan_fleet(JOBS, CLUSTERS))


def test_tolerances_are_counted_as_they_would_be_planned(plans):
    found = {fix.share: fix.rows for fix in from_table(plans) if "tolerance" in fix.what}
    now = feasible()
    assert found
    for share in TOLERANCES:
        assert found.get(share, 0) == (feasible(batch_tolerance=share) & ~now).sum()


def test_idle_gpus_are_counted_as_they_would_be_planned():
    jobs = {"job": ["a", "b"], "effective_batch": [256, 96], "lr": [0.1, 0.1]}
    fixes = from_table(plans_of(ib.plan_fleet(jobs, [7, 9])))
    # 256 fits on 8 of 9 GPUs, 96 on 6 of 7 and 8 of 9; the nearest to 7 that fit 256 are 8, which are not there.
    assert {fix.share: fix.rows for fix in fixes if "idle" in fix.what} == {0.25: 3}


def test_planning_again_finds_more(plans):
    fixes = by_planning(plans, JOBS, CLUSTERS)
    now = feasible()
    rows = {fix.how: fix.rows for fix in fixes}
    assert rows["--split ragged"] == (feasible(split="ragged") & ~now).sum() > 0
    assert rows["--batch-tolerance 0.02"] == (feasible(batch_tolerance=0.02) & ~now).sum()
    assert [fix.rows for fix in fixes] == sorted(rows.values(), reverse=True)
    # A tolerance of 25 % makes one row more, and changes the batches.
    assert summary(fixes).endswith(
        f"makes {rows['--split ragged']} of 125 rows whose batch cannot be split evenly feasible (--split ragged)"
    )


def test_a_setting_that_forbids_most_is_found():
    settings = {"micro_batch_multiple": 64}
    table = ib.plan_fleet(JOBS, CLUSTERS, **settings)
    table = table.replace_schema_metadata(
        {"isobatch.settings": '{"micro_batch_multiple":64,"policy":"keep"}'}
    )
    rows = {fix.how: fix.rows for fix in by_planning(plans_of(table), JOBS, CLUSTERS)}
    assert rows["without --micro-batch-multiple"] == (feasible() & ~feasible(**settings)).sum() > 0


def test_other_jobs_are_refused(plans):
    with pytest.raises(ib.InputError, match="give 27 rows, and the plans have 459"):
        by_planning(plans, JOBS, [8])
    with pytest.raises(ib.InputError, match="other plans than the table has"):
        by_planning(plans, JOBS, [3] * 17)


def test_a_table_is_read_alike_from_any_file(tmp_path, plans):
    from isobatch.cli import main
    from isobatch.files.read import read_table

    for suffix in ("parquet", "csv", "jsonl"):
        file = tmp_path / f"plans.{suffix}"
        assert main(["fleet", JOBS, CLUSTERS, "-o", str(file)]) == 0
        found = plans_of(read_table(file))
        assert (found.status == plans.status).all() and (found.reasons == plans.reasons).all()
        for name in ("lr", "world_size", "nearest_batch", "hours"):
            np.testing.assert_array_equal(found.number(name), plans.number(name))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"status": ["ok"]}, "has no column 'reasons'"),
        ({"status": ["fine"], "reasons": [[]]}, "status must be ok, caution or infeasible, got 'fine'"),
        (
            {"status": ["ok"], "reasons": ["odd"]},
            "reasons must be names of reasons, as a fleet's table has them",
        ),
        ({"status": ["ok"], "reasons": [""], "lr": ["x"]}, "column 'lr' must have numbers"),
    ],
)
def test_what_is_no_fleet_is_refused(columns, message):
    with pytest.raises(ib.InputError, match=message):
        plans_of(pa.table(columns))
