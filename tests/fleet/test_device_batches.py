"""The batches of unequal devices in a table: an illegal cell is a reason for its row alone."""

import numpy as np
import pytest

import isobatch as ib

DEVICE_BATCHES = [
    (128, 128), [100, 156], (256,), (64, 64), (100, 100), (0, 256), (256, 0), (-128, 384), (128, 128.0),
    (True, 255), (128, None), (), (2**63, 1),
    ((128,), 128), ("128", "128"), 256, 0, 2.5, True, "128,128", "x", {"a": 1}, {128}, object(),
    np.array([128, 128]), np.array([128.0, 128.0]), np.array(256),
    (np.int64(128), np.int64(128)), None, float("nan"),
]  # fmt: skip
LISTS_AS_TEXT = ("128,128",)
"""A table's cell may be a text, as in CSV; a recipe's field is a value."""


def alone(batches, **fields):
    """Returns the effective batch of a plan, or the field in the recipe's error."""
    if isinstance(batches, np.ndarray):
        batches = batches.tolist()
    if batches != batches:  # NaN: a table's word for what is not known
        batches = None
    if isinstance(batches, str) and batches in LISTS_AS_TEXT:
        batches = tuple(map(int, batches.split(",")))
    try:
        recipe = ib.Recipe(effective_batch=256, lr=0.1, duration="100st", device_batches=batches, **fields)
    except ib.InputError as error:
        return error.field
    return ib.plan(recipe, 2, max_micro_batch=128)


@pytest.mark.parametrize("fields", [{}, {"gpus": 2}, {"accumulation": 1}, {"gpus": 4, "accumulation": 2}])
@pytest.mark.parametrize("batches", DEVICE_BATCHES, ids=lambda value: str(value).partition(" at 0x")[0][:24])
def test_batches_of_devices_are_checked_in_a_fleet_as_in_a_recipe(batches, fields):
    cells = np.empty(3, object)
    cells[:] = [None, None, None]
    cells[1] = batches
    jobs = {"effective_batch": [256] * 3, "lr": [0.1] * 3, "duration": ["100st"] * 3, "device_batches": cells}
    jobs |= {name: [value] * 3 for name, value in fields.items()}
    if isinstance(batches, dict | set):
        # No cell of any column may be such a thing: the row is named.
        with pytest.raises(ib.InputError, match="row 2: device_batches must be a number or a text"):
            ib.plan_fleet(jobs, [2])
        return
    table = ib.plan_fleet(jobs, [2], max_micro_batch=128)
    planned = alone(batches, **fields)
    if isinstance(planned, str):
        assert planned == "device_batches"
        assert table["status"][1] == "infeasible"
        assert ib.Reason.of(table["reasons"])[1] == (ib.Reason.INVALID_BATCH,)
    else:
        assert table["status"][1] == planned.status
        assert ib.Reason.of(table["reasons"])[1] == planned.reasons
        assert table["effective_batch"][1] == planned.effective_batch
    default = alone(None, **fields)
    assert [table["status"][row] for row in (0, 2)] == [default.status] * 2


def test_a_list_of_batches_may_come_in_any_table():
    pa = pytest.importorskip("pyarrow", reason="Arrow's lists")
    kinds = {
        "two dimensions": {"device_batches": np.array([[128, 128], [100, 156], [100, 100]])},
        "lists": pa.table({"device_batches": [[128, 128], [100, 156], [100, 100]]}),
        "texts": pa.table({"device_batches": ["[128, 128]", "100;156", "(100, 100)"]}),
    }
    for name, jobs_given in kinds.items():
        columns = {
            "effective_batch": np.full(3, 256),
            "lr": np.full(3, 0.1),
            "duration": np.array(["100st"] * 3),
        }
        if isinstance(jobs_given, dict):
            table = ib.plan_fleet(columns | jobs_given, [2], columns=["status"])
            status = table["status"].tolist()
        else:
            for field, column in columns.items():
                jobs_given = jobs_given.append_column(field, pa.array(column.tolist()))
            status = ib.plan_fleet(jobs_given, [2], columns=["status"])["status"].to_pylist()
        assert status[:2] == ["caution", "caution"] and status[2] == "infeasible", name
