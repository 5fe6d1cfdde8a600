"""Anything tabular in: the same plans out."""

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import isobatch as ib

CLUSTERS = [8, 64, 7]
RECIPES = [
    ib.Recipe(
        effective_batch=256, lr=0.1, optimizer="sgd", dataset_size=1_281_167, duration="90ep", warmup="5ep"
    ),
    ib.Recipe(
        effective_batch=1024,
        lr=3e-4,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        duration="1000st",
        drop_last="loader",
    ),
    ib.Recipe(
        effective_batch=448,
        lr=1e-3,
        optimizer="lamb",
        seq_len=128,
        duration="1e6tok",
        warmup="10%",
        batch_norm=True,
    ),
]
COLUMNS = {
    "job": ["a", "b", "c"],
    "effective_batch": [256, 1024, 448],
    "lr": [0.1, 3e-4, 1e-3],
    "optimizer": ["sgd", "adamw", "lamb"],
    "betas": [None, (0.9, 0.95), None],
    "weight_decay": [None, 0.1, None],
    "dataset_size": [1_281_167, None, None],
    "seq_len": [None, None, 128],
    "duration": ["90ep", "1000st", "1e6tok"],
    "warmup": ["5ep", None, "10%"],
    "drop_last": [None, "loader", None],
    "batch_norm": [False, False, True],
    "team": ["x", None, "z"],
}


def numpy_columns():
    columns = {}
    for name, values in COLUMNS.items():
        column = np.empty(3, dtype=object)
        column[:] = values
        columns[name] = column
    return columns


def expected():
    return ib.plan_fleet(RECIPES, CLUSTERS, policy=512)


def same(table, columns):
    for name, values in columns.items():
        if name in ("job", "cluster"):
            continue
        np.testing.assert_array_equal(table[name], values, err_msg=name)


def test_arrays_of_numpy_are_the_recipes():
    same(ib.plan_fleet(numpy_columns(), CLUSTERS, policy=512), expected())
    masked = np.ma.MaskedArray([1_281_167, 0, 0], mask=[False, True, True])
    typed = {
        **numpy_columns(),
        "effective_batch": np.array([256, 1024, 448], dtype=np.uint16),
        "lr": np.array([0.1, 3e-4, 1e-3]),
        "optimizer": np.array(["sgd", "adamw", "lamb"]),
        "dataset_size": masked,
        "seq_len": np.array([np.nan, np.nan, 128]),
        "weight_decay": np.array([np.nan, 0.1, np.nan]),
        "warmup": np.array(["5ep", "", "10%"]),
        "batch_norm": np.array([False, False, True]),
    }
    same(ib.plan_fleet(typed, CLUSTERS, policy=512), expected())
    assert ib.plan_fleet({**typed, "betas": np.full((3, 2), 0.9)}, [8])["beta2"].tolist() == [0.9] * 3


def lists():
    return {
        name: [list(v) if isinstance(v, tuple) else v for v in values] for name, values in COLUMNS.items()
    }


def arrow_is(table):
    """The Arrow result against the recipes' NumPy result, unknown values and all."""
    planned, reference = ib.plan_fleet(table, CLUSTERS, policy=512), expected()
    assert planned["team"].to_pylist() == [x for x in ("x", None, "z") for _ in CLUSTERS]
    assert planned["job"].to_pylist() == [x for x in "abc" for _ in CLUSTERS]
    for name, values in reference.items():
        if name in ("job", "cluster"):
            continue
        if name == "reasons":
            values = [[str(reason) for reason in ib.Reason.of(bits)] for bits in values.tolist()]
        elif name != "status":
            values = [None if x == -1 or x != x else x for x in values.tolist()]
        else:
            values = values.tolist()
        assert planned[name].to_pylist() == values, name


def test_pyarrow():
    pa = pytest.importorskip("pyarrow", reason="comes with the extra 'fleet'")
    table = pa.table(lists())
    arrow_is(table)
    dictionary = table.set_column(3, "optimizer", table["optimizer"].dictionary_encode())
    arrow_is(dictionary)
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    arrow_is(chunked)
    large = table.set_column(8, "duration", table["duration"].cast(pa.large_string()))
    arrow_is(large)


def test_data_frames():
    pytest.importorskip("pyarrow", reason="comes with the extra 'fleet'")
    pd = pytest.importorskip("pandas", reason="a caller's own library")
    frame = pd.DataFrame(lists())
    assert frame["dataset_size"].dtype == float  # pandas makes integers with gaps real
    arrow_is(frame)
    pl = pytest.importorskip("polars", reason="a caller's own library")
    frame = pl.DataFrame(lists())
    arrow_is(frame)
    duckdb = pytest.importorskip("duckdb", reason="a caller's own library")
    arrow_is(duckdb.sql("select * from frame"))


def test_columns_settings_and_pairs():
    jobs = {
        **numpy_columns(),
        "policy": np.array(["keep", "512", "grow"]),
        "max_micro_batch": np.array([4, 8, 16]),
    }
    planned = ib.plan_fleet(
        jobs, CLUSTERS, pairs={"job": ["c", "a"], "cluster": [2, 1]}, columns=["job", "effective_batch"]
    )
    assert planned["job"].tolist() == ["c", "a"]
    assert planned["effective_batch"].tolist() == [16 * 7, 256]
    whole = ib.plan_fleet(jobs, CLUSTERS, policy="grow")
    for row, (policy, cap) in enumerate([("keep", 4), (512, 8), ("grow", 16)]):
        plans = [ib.plan(RECIPES[row], gpus, policy=policy, max_micro_batch=cap) for gpus in CLUSTERS]
        assert [p.effective_batch or -1 for p in plans] == whole["effective_batch"][
            row * 3 : row * 3 + 3
        ].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"team": np.zeros((3, 2))}, "team must have one dimension, got an array of 2"),
        ({"team": np.zeros(2)}, "team must have 3 values as the other columns, got 2"),
        ({"lr": np.zeros(3, dtype=complex)}, "lr holds complex128, expected numbers or texts"),
        ({"job": np.array(["a", "b", "a"])}, "row 3: duplicate job id 'a' (also in row 1)"),
        ({"micro": 1, "total_steps": np.zeros(3)}, "micro"),
    ],
)
def test_a_bad_column_is_named(change, message):
    with pytest.raises((ib.InputError, TypeError)) as error:
        ib.plan_fleet({**numpy_columns(), **change}, [8])
    assert isinstance(error.value, ib.InputError)
    assert message in str(error.value)


def test_bad_tables():
    for jobs in (3, None, "jobs.txt", [1, 2]):
        with pytest.raises(ib.InputError):
            ib.plan_fleet(jobs, [8])


@pytest.mark.parametrize("clusters", [[8.0], ["8"], np.array([8.0]), [True]])
def test_gpu_counts_are_whole_numbers(clusters):
    with pytest.raises(
        ib.InputError, match="row 1: cluster must be a Cluster or a whole number of GPUs, got"
    ):
        ib.plan_fleet(numpy_columns(), clusters)


@pytest.mark.parametrize("kind", ["numpy", "arrow", "pandas"])
def test_policies_that_are_numbers_in_some_rows(kind):
    columns = {
        "effective_batch": np.array([256] * 3),
        "lr": np.array([0.1] * 3),
        "policy": np.array([512, 0, 320]),
    }
    if kind == "numpy":
        columns["policy"] = np.ma.MaskedArray(columns["policy"], mask=[False, True, False])
    elif kind == "arrow":
        pa = pytest.importorskip("pyarrow", reason="Arrow tables need pyarrow")
        columns = pa.table({**columns, "policy": pa.array([512, None, 320])})
    else:
        pd = pytest.importorskip("pandas", reason="such columns come from pandas")
        columns = pd.DataFrame({**columns, "policy": [512, None, 320]})
        assert columns["policy"].dtype == float
    planned = ib.plan_fleet(columns, [8], policy="keep", columns=["effective_batch"])["effective_batch"]
    assert np.asarray(planned).tolist() == [512, 256, 320]


@pytest.mark.parametrize("chunks", [1, 2])
def test_dictionaries_of_arrow(chunks):
    pa = pytest.importorskip("pyarrow", reason="comes with the extra 'fleet'")
    texts = [*(f"{number}st" for number in range(1, 120)), None, "", "3q"]
    codes = pa.array([*range(122), None, 0], pa.int8())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(texts))
    plain = column.cast(pa.string())
    rows = len(codes) * chunks
    jobs = {"effective_batch": [256] * rows, "lr": [0.1] * rows, "dataset_size": [10**6] * rows}
    planned = [
        ib.plan_fleet(pa.table({**jobs, "duration": pa.chunked_array([values] * chunks)}), [8, 12])
        for values in (column, plain)
    ]
    assert planned[0].equals(planned[1])
    # Of few rows, few texts are read.
    few = pa.table({**jobs, "duration": pa.chunked_array([column] * chunks)}).slice(119, 4)
    assert ib.plan_fleet(few, [8])["status"].to_pylist() == ["ok", "ok", "infeasible", "ok"]


def test_categories_of_polars():
    pl = pytest.importorskip("polars", reason="such columns come from polars")
    optimizers = ["sgd", "adamw", "lamb"]
    plain = pl.DataFrame({"job": ["a", "b", "c"], "effective_batch": [256] * 3, "lr": [0.1] * 3})
    columns = ["job", "beta1", "team"]
    planned = [
        ib.plan_fleet(
            plain.with_columns(
                pl.col("job").cast(kind or pl.String),
                pl.Series("optimizer", optimizers).cast(kind or pl.String),
                pl.Series("team", optimizers).cast(kind or pl.String),
            ),
            [8],
            columns=columns,
        ).to_pylist()
        for kind in (None, pl.Enum(["a", "b", "c", *optimizers]), pl.Categorical)
    ]
    assert planned[0] == planned[1] == planned[2]
    assert [row["team"] for row in planned[0]] == optimizers


def test_empty_tables():
    planned = ib.plan_fleet({"effective_batch": np.zeros(0, int), "lr": np.zeros(0)}, CLUSTERS)
    assert all(len(column) == 0 for column in planned.values())
    assert len(ib.plan_fleet(numpy_columns(), [])["lr"]) == 0


BATCHES = np.arange(1, 30_001)


def many():
    return ib.plan_fleet({"effective_batch": BATCHES, "lr": np.ones(30_000)}, [1, 2])["micro_batch"].sum()


def test_threads_and_asyncio_agree():
    with ThreadPoolExecutor(4) as threads:
        sums = {int(future.result()) for future in [threads.submit(many) for _ in range(8)]}
    assert len(sums) == 1
    assert int(asyncio.run(asyncio.to_thread(many))) in sums


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_fork_after_a_bulk_call_does_not_hang():
    expected_sum = int(many())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert [int(s) for s in pool.starmap_async(many, [(), ()]).get(60)] == [expected_sum] * 2


def test_a_table_whose_rows_have_their_own_clusters():
    pa = pytest.importorskip("pyarrow", reason="Arrow tables need pyarrow")
    jobs = {
        "effective_batch": np.array([256, 256, 250]),
        "lr": np.array([0.1] * 3),
        "team": np.array(["a", "b", "c"]),
    }
    own = {**jobs, "nodes": np.array([1, 2, 1]), "price_per_gpu_hour": np.array([1.0, 2.0, 3.0])}
    planned = ib.plan_fleet(own)
    assert next(iter(planned)) == "team"  # rows that nobody named have no ids
    assert planned["world_size"].tolist() == [8, 16, 8]
    assert planned["status"].tolist() == ["ok", "ok", "infeasible"]
    for row in range(3):
        single = ib.plan_fleet({name: column[row : row + 1] for name, column in own.items()})
        for name, column in single.items():
            np.testing.assert_array_equal(planned[name][row : row + 1], column)
    table = ib.plan_table(pa.table(own))
    assert table.column_names == list(planned)
    assert table["micro_batch"].to_pylist() == [32, 16, None]
    # The same schema whatever the rows hold, so that a table can be mapped block by block.
    blocks = [ib.plan_table(pa.table(own).slice(start, 1)) for start in range(3)]
    assert pa.concat_tables([*blocks, ib.plan_table(pa.table(own).slice(3))]).equals(table)
    with pytest.raises(ib.InputError, match="each row needs its own: add a column nodes or gpus_per_node"):
        ib.plan_fleet(jobs)
    with pytest.raises(ib.InputError, match="select needs clusters"):
        profile = ib.Profile.estimate(parameters=10**6, flops_per_sample=1e9, gpu_tflops=10)
        ib.plan_fleet(own, select="fastest", profile=profile)
    with pytest.raises(ib.InputError, match="without any, each row has its own"):
        ib.plan_fleet(own, pairs={"job": [0], "cluster": [0]})
    with pytest.raises(ib.InputError, match="table must be a pyarrow.Table, got a dict"):
        ib.plan_table(own)


@pytest.mark.parametrize("crossed", [True, False])
def test_a_column_is_the_same_whatever_is_asked_for_beside_it(crossed):
    """The planner looks for ways out only on request."""
    rng = np.random.default_rng(3)
    rows = 300
    jobs = {
        "effective_batch": rng.choice([256, 1000, 4096, 0, 7], rows),
        "lr": rng.uniform(-0.1, 1, rows),
        "dataset_size": rng.integers(10, 10_000, rows),
        "duration": rng.choice(["9ep", "1000st"], rows),
    }
    clusters = {"nodes": rng.integers(1, 9, rows), "model_parallel": rng.choice([1, 2, 3], rows)}
    tables = (jobs, clusters) if crossed else ({**jobs, **clusters},)
    every = ib.plan_fleet(*tables)
    without = [name for name in every if not name.startswith("nearest_")]
    for name, column in ib.plan_fleet(*tables, columns=without).items():
        np.testing.assert_array_equal(column, every[name], err_msg=name)
    assert (every["nearest_batch"] > 0).any() and (every["status"] == "infeasible").any()
