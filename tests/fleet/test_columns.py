"""Columns of all kinds plan the same rows: NumPy, masked arrays, texts, objects."""

from decimal import Decimal

import numpy as np
import pytest

import isobatch as ib

LARGE = 2**53 + 1


def planned(column, values, **more):
    jobs = {"effective_batch": [256] * len(values), "lr": [0.1] * len(values), **more, column: values}
    return ib.plan_fleet(jobs, [8], columns=["status", "micro_batch", "reasons"])


def statuses(column, values, **more):
    return planned(column, values, **more)["status"].tolist()


def test_whole_numbers_are_not_rounded_to_the_nearest_real():
    # 2^53 + 1 is no count, and rounded to 2^53 it would be one.
    for values in (np.array([LARGE, 2**53], np.uint64), np.array([LARGE, 2**53], object)):
        assert statuses("dataset_size", values) == ["infeasible", "ok"]
    assert statuses("dataset_size", np.array([2**64 - 1, 2**20], np.uint64)) == ["infeasible", "ok"]


def test_whole_numbers_of_arrow_are_not_rounded_either():
    pa = pytest.importorskip("pyarrow", reason="Arrow's columns")
    for column in (pa.array([LARGE, None], pa.uint64()), pa.array([Decimal(LARGE), None])):
        jobs = pa.table({"effective_batch": [256, 256], "lr": [0.1, 0.1], "dataset_size": column})
        plans = ib.plan_fleet(jobs, [8], columns=["status"])
        assert plans["status"].to_pylist() == ["infeasible", "ok"]


@pytest.mark.parametrize("name", ["batch_norm", "drop_last", "short_epochs"])
def test_a_flag_of_arrow_may_be_unknown(name):
    pa = pytest.importorskip("pyarrow", reason="Arrow's columns")
    for flags in ([True, None], [None, None]):
        jobs = {"effective_batch": [256, 256], "lr": [0.1, 0.1], name: pa.array(flags, pa.bool_())}
        flagged = ib.plan_fleet(pa.table(jobs), [7], columns=["status", "reasons"])
        columns = {**jobs, name: [None if flag is None else str(flag).lower() for flag in flags]}
        texts = ib.plan_fleet(pa.table(columns), [7], columns=["status", "reasons"])
        assert flagged.equals(texts)


def test_equal_values_of_other_types_differ():
    # One cell's type says nothing of another's.
    for values in ([1, True, 1.0], [True, 1, 1.0], [1.0, True, 1]):
        rows = statuses("gpus", np.array(values, object))
        assert rows == ["infeasible" if value is True else "ok" for value in values]


def test_a_flag_is_no_count():
    assert statuses("gpus", np.array([True, True])) == ["infeasible"] * 2
    assert statuses("batch_norm", np.array([True, False])) == ["ok", "ok"]
    masked = np.ma.array([True, True], mask=[True, False])
    assert statuses("gpus", masked) == ["ok", "infeasible"]


def test_the_least_whole_number_is_no_missing_cap():
    values = np.array([np.iinfo(np.int64).min, 4])
    assert statuses("max_micro_batch", values) == ["infeasible", "ok"]
    masked = np.ma.array(values, mask=[True, False])
    assert planned("max_micro_batch", masked)["micro_batch"].tolist() == [32, 4]


def test_minus_one_is_a_value_and_no_unknown():
    assert statuses("max_micro_batch", [-1, 4]) == ["infeasible", "ok"]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("optimizer", np.array([{"a": 1}, "sgd"], object),
        "row 1: optimizer must be a number or a text, got {'a': 1}"),
        ("optimizer", np.array(["sgd", [[1], [2]]], object), "row 2: optimizer must be a number or a text"),
        ("optimizer", ["sgd", "\ud800"], "optimizer has text that is not Unicode"),
        ("job", np.array([[1, 2], "b"], object), "row 1: job must be a text or a number"),
        ("lr", 0.1, "lr must be an array or a sequence, one value a row, got 0.1"),
        ("lr", "fast", "lr must be an array or a sequence"),
    ],
)  # fmt: skip
def test_cells_that_are_no_values_are_named(column, values, message):
    with pytest.raises(ib.InputError) as error:
        ib.plan_fleet({"effective_batch": [256, 256], "lr": [0.1, 0.1], column: values}, [8])
    assert message in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"pairs": 5}, "pairs must be a table with the columns job and cluster, got 5"),
        ({"pairs": {"job": 5, "cluster": [0]}}, "job must be a sequence of ids, got 5"),
        ({"pairs": {"job": [[1]], "cluster": [0]}}, "there is no job [1]"),
        ({"top": 2**64, "select": "fastest"}, "top must be a whole number from 1"),
        ({"columns": [["lr"]]}, "columns must be names of columns, got ['lr']"),
        ({"output": "plans"}, "unknown setting 'output'"),
        ({"learning_rate": 3}, "unknown setting 'learning_rate'"),
        ({"price_per_gpu_hour": 2}, "it is a field of the Cluster, or a column of the clusters of a fleet"),
        ({"precision": "bf16"}, "it is a field of the Recipe, or a column of the jobs of a fleet"),
        ({"pairs": {"job": [0], "cluster": [8]}},
        "there is no cluster 8: without a column cluster they are numbered from 0"),
        ({"polcy": "keep"}, "unknown setting 'polcy': did you mean 'policy'?"),
        ({"policy": "shrink"}, "policy must be keep, grow"),
        ({"columns": ["micro"]}, "unknown column 'micro': did you mean 'micro_batch'?"),
        ({"columns": ["lr", "job", "lr"]}, "'lr' is listed twice"),
        ({"top": 2}, "top needs select: fastest, cheapest or goodput"),
        ({"pairs": {"job": [0]}}, "cluster is missing: pairs needs"),
        ({"pairs": {"job": ["z"], "cluster": [0]}}, "row 1: there is no job 'z'"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_are_named(keywords, message):
    with pytest.raises(ib.InputError) as error:
        ib.plan_fleet({"effective_batch": [256], "lr": [0.1]}, [8], **keywords)
    assert message in str(error.value)


def test_a_pair_of_an_unknown_name_gets_the_nearest():
    jobs = {"job": ["resnet", "bert"], "effective_batch": [256, 256], "lr": [0.1, 0.1]}
    for name, hint in (("resnt", "did you mean 'resnet'?"), ("z", "there are 'resnet', 'bert'")):
        with pytest.raises(ib.InputError, match="there is no job") as error:
            ib.plan_fleet(jobs, [8], pairs={"job": [name], "cluster": [0]})
        assert str(error.value).endswith(hint)


def test_gpus_in_the_wrong_table_are_explained():
    jobs = {"effective_batch": [256], "lr": [0.1]}
    with pytest.raises(
        ib.InputError, match=r"nodes is missing: add it or gpus_per_node \(the columns are gpus\)"
    ):
        ib.plan_fleet(jobs, {"gpus": [8]})
    with pytest.raises(ib.InputError, match=r"\(gpus is the count that the job was tuned on\)"):
        ib.plan_fleet({**jobs, "gpus": [8]})


def test_a_count_with_a_fraction_is_no_count():
    values = ["9007199254740992.4", "4503599627370497.5", "1281167.0", "1e6", "9007199254740992"]
    table = statuses("dataset_size", values)
    assert table == ["infeasible", "infeasible", "ok", "ok", "ok"]


def test_a_row_that_cannot_be_planned_has_the_gpus_of_its_cluster():
    jobs = {"effective_batch": [256, 0, 256], "lr": [np.nan, 0.1, 0.1]}
    clusters = {"nodes": np.array([2, 0, 2**31]), "gpus_per_node": np.array([8, 8, 8])}
    table = ib.plan_fleet(jobs, clusters, columns=["world_size", "status"])
    assert table["world_size"].tolist() == [16, -1, -1] * 3
    assert table["status"].tolist() == ["infeasible"] * 6 + ["ok", "infeasible", "infeasible"]


def test_columns_may_be_a_generator():
    jobs = {"effective_batch": [256], "lr": [0.1]}
    assert list(ib.plan_fleet(jobs, [8], columns=(name for name in ("lr", "status")))) == ["lr", "status"]
    assert list(ib.plan_fleet(jobs, [8], columns="lr")) == ["lr"]


def test_a_result_larger_than_memory_is_refused_with_its_size():
    jobs = {"effective_batch": np.full(10**6, 256), "lr": np.full(10**6, 0.1)}
    with pytest.raises(ib.InputError) as error:
        ib.plan_fleet(jobs, range(1, 10**6 + 1), columns=["micro_batch", "lr"])
    assert "1,000,000,000,000 rows of 2 columns, 11,200 GiB, and this machine has" in str(error.value)


def test_a_range_of_gpu_counts_is_no_list_of_records(monkeypatch):
    import isobatch.fleet.table

    monkeypatch.setattr(isobatch.fleet.table, "_of_records", None)
    for counts in (range(1, 10**6 + 1), np.arange(1, 10**6 + 1), list(range(1, 10**6 + 1))):
        plans = ib.plan_fleet({"effective_batch": [2**20], "lr": [0.1]}, counts, columns=["world_size"])
        assert plans["world_size"][-1] == 10**6


def test_all_missing_columns_are_said_at_once():
    with pytest.raises(ib.InputError) as error:
        ib.plan_fleet({"learning_rate": [0.1], "global_batch_size": [8]}, [8])
    assert error.value.fields == ("effective_batch", "lr")
    assert "lr is missing: rename 'learning_rate'?" in str(error.value)
    assert "effective_batch is missing: rename 'global_batch_size'?" in str(error.value)


@pytest.mark.parametrize("odd", ["", "null", "x", "1e3st", "é" * 20, "90ep ", "a\0b"])
@pytest.mark.parametrize("distinct", [1, 4, 7, 9, 1000])
def test_a_long_column_of_few_texts_is_read_as_a_short_one(odd, distinct):
    from isobatch.fleet import columns

    rng = np.random.default_rng(distinct)
    texts = np.array([f"{n + 1}ep" for n in range(distinct)])
    values = rng.choice(texts, 20_000)
    values = values.astype(f"U{max(20, len(odd))}")
    values[[77, 19_999]] = odd
    codes, known = columns.of_numpy("duration", values, None)
    slow = columns._factorize("duration", values.tolist(), None)
    assert known == slow[1] and np.array_equal(codes, slow[0]) and codes.dtype == np.uint32


def test_long_columns_of_few_texts_are_taken_as_such_and_half_a_character_is_refused():
    from isobatch.fleet import columns

    values = np.array(["90ep", "100st"] * 10_000)
    assert columns._few_texts("duration", values, None)[1] == ["90ep", "100st"]
    assert columns._few_texts("duration", values[:1000], None) is None
    assert columns._few_texts("duration", np.arange(20_000).astype(str), None) is None
    values[5] = "\ud800"
    with pytest.raises(ib.InputError, match="duration has text that is not Unicode"):
        columns.of_numpy("duration", values, None)
