"""The words of a plan: a case for each line of that part of the design, so that no two parts disagree."""

import csv
import io

import msgspec
import numpy as np
import pytest

import isobatch as ib
from isobatch import _core


def resnet(**changes):
    fields = {
        "gpus": 8, "batch_per_gpu": 32, "lr": 0.1, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4,
        "dataset_size": 1_281_167, "duration": "90ep", "warmup": "5ep",
    }  # fmt: skip
    return ib.Recipe.from_gpus(**fields | changes)


def adamw(**changes):
    return ib.Recipe(
        **{"effective_batch": 256, "lr": 1e-3, "duration": "1000st", "warmup": "100st"} | changes
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "100 of them warmup, then cosine to 0;"),
        ({"min_lr": 1e-5}, "100 of them warmup, then cosine to 1e-5;"),
        ({"schedule": "constant"}, "100 of them warmup, then constant;"),
        ({"schedule": "wsd(decay=20%)"}, "100 of them warmup, then wsd(decay=20%);"),
        ({"schedule": ib.schedules.constant(1e-3)}, "100 of them warmup, then its own schedule;"),
    ],
)
def test_the_text_names_the_schedule(fields, words):
    assert words in ib.plan(adamw(**fields), 8).explain()


@pytest.mark.parametrize(
    ("total", "share", "steps"),
    [(612, "3%", 19), (78, "3%", 3), (100, "7%", 8), (100, "10%", 10), (1000, "0.1%", 1)],
)
def test_the_trainer_rounds_a_share_up_in_floats(total, share, steps):
    recipe = adamw(duration=f"{total}st", warmup=share)
    assert ib.plan(msgspec.structs.replace(recipe, convention="transformers"), 8).warmup_steps == steps
    assert ib.plan(recipe, 8).warmup_steps == int(total * float(share[:-1]) / 100 + 1e-9)


# The cap


def test_the_cap_and_where_it_is_from():
    assert (ib.plan(resnet(), 4).micro_batch_cap, ib.plan(resnet(), 4).cap_source) == (32, "tuned")
    capped = ib.plan(resnet(), 4, max_micro_batch=64)
    assert (capped.micro_batch_cap, capped.cap_source, capped.micro_batch) == (64, "max_micro_batch", 64)
    free = ib.plan(adamw(), 4)
    assert (free.micro_batch_cap, free.cap_source, free.micro_batch) == (None, "open", 64)


# The dataset


def test_with_linear_it_starts_at_the_tuned_learning_rate():
    plan = ib.plan(resnet(), 256, policy="grow", rule="linear")
    assert [plan.lr_at(step) for step in (0, 157 * 5)] == [0.1, 3.2]
    assert plan.lr_at(157 * 5 / 2) == pytest.approx(1.65, rel=1e-15)
    # Scaled down, the tuned rate would be above the peak.
    assert ib.plan(resnet(), 4, policy="grow", rule="linear").lr_at(0) == 0


def test_min_lr_scales_with_the_peak():
    plan = ib.plan(adamw(gpus=8, min_lr=1e-5), 32, policy="grow", rule="sqrt")
    assert plan.min_lr == pytest.approx(2e-5, rel=1e-15)
    assert plan.lr_at(plan.total_steps) == pytest.approx(2e-5, rel=1e-12)


def test_from_gpus_sums_unequal_devices_and_the_plan_says_what_that_needs():
    recipe = ib.Recipe.from_gpus(gpus=4, batch_per_gpu=[32, 32, 16, 16], lr=0.1, duration="100st")
    assert recipe.effective_batch == 96
    plan = ib.plan(recipe, 8)
    assert ib.Reason.UNEQUAL_DEVICES in plan.reasons
    assert "weight" in ib.Reason.UNEQUAL_DEVICES.text
    assert plan.effective_batch == 96
    equal = ib.Recipe.from_gpus(gpus=4, batch_per_gpu=[32] * 4, lr=0.1, duration="100st")
    assert ib.Reason.UNEQUAL_DEVICES not in ib.plan(equal, 8).reasons


# Names


def test_a_keyword_may_be_a_column_and_the_rows_value_wins():
    jobs = {
        "effective_batch": np.array([256] * 5), "lr": np.array([0.1] * 5), "gpus": np.array([8] * 5),
        "optimizer": np.array(["sgd"] * 5),
        "policy": np.array(["grow", "keep", None, "1024", "grow"], dtype=object),
        "rule": np.array(["sqrt", None, None, "linear", ""], dtype=object),
        "max_micro_batch": np.ma.array([32, 0, 16, 8, 4], mask=[0, 1, 0, 0, 0]),
    }  # fmt: skip
    table = ib.plan_fleet(jobs, [32], policy=512, rule="linear", max_micro_batch=2)
    assert table["effective_batch"].tolist() == [1024, 256, 512, 1024, 1024]
    assert table["lr"].tolist() == pytest.approx([0.2, 0.1, 0.2, 0.4, 0.4])
    assert table["micro_batch"].tolist() == [32, 2, 16, 8, 4]


def test_a_setting_may_stand_in_the_clusters():
    clusters = {"nodes": np.array([1, 1]), "gpus_per_node": np.array([8, 8])}
    clusters["max_micro_batch"] = np.array([4, 32])
    jobs = {"effective_batch": np.array([256]), "lr": np.array([0.1])}
    assert ib.plan_fleet(jobs, clusters)["micro_batch"].tolist() == [4, 32]


TYPES = {name: np.dtype(kind).type for name, kind, *_ in _core.results() if name != "status"}
"""As docs/fleet.md has them."""


def test_the_types_of_columns_are_fixed():
    jobs = {"effective_batch": np.array([256, 250]), "lr": np.array([0.1, 0.1])}
    table = ib.plan_fleet(jobs, [8], columns=["status", *TYPES])
    assert {name: table[name].dtype.type for name in TYPES} == TYPES
    # Unknown is −1 or NaN: the second row is infeasible.
    for name, kind in TYPES.items():
        if name not in ("reasons", "world_size", "data_parallel", "nearest_world_size", "nearest_batch"):
            assert np.isnan(table[name][1]) if kind is np.float64 else table[name][1] == -1, name
    assert ib.Reason.of(int(table["reasons"][1])) == (ib.Reason.NOT_DIVISIBLE,)


def test_in_arrow_reasons_are_lists_and_unknown_is_null():
    pa = pytest.importorskip("pyarrow", reason="tables of Arrow come with the extra 'fleet'")
    jobs = pa.table({"job": ["a", "b"], "effective_batch": [256, 250], "lr": [0.1, 0.1]})
    clusters = pa.table({"cluster": ["c"], "nodes": [1], "gpus_per_node": [8]})
    table = ib.plan_fleet(jobs, clusters, columns=["status", *TYPES])
    assert isinstance(table, pa.Table)
    assert table["reasons"].to_pylist()[1] == ["not_divisible"]
    assert pa.types.is_list(table.schema.field("reasons").type)
    assert pa.types.is_string(table.schema.field("reasons").type.value_type)
    for name, kind in TYPES.items():
        if name != "reasons":
            assert table.schema.field(name).type == pa.from_numpy_dtype(kind), name
    for name in ("micro_batch", "lr", "total_steps"):
        assert table[name][1].as_py() is None
    assert table["nearest_batch"].to_pylist() == [None, 248]


def test_in_csv_reasons_are_joined(tmp_path, ran):
    pytest.importorskip("pyarrow", reason="files come with the extra 'fleet'")

    (tmp_path / "jobs.csv").write_text(
        "job,effective_batch,lr,gpus,duration,optimizer\na,256,0.1,8,100st,adam\n"
    )
    (tmp_path / "clusters.csv").write_text("cluster,nodes,gpus_per_node\nc,16,8\n")
    words = ["fleet", str(tmp_path / "jobs.csv"), str(tmp_path / "clusters.csv"), "--columns", "reasons"]
    row = next(csv.DictReader(io.StringIO(ran([*words, "--policy", "grow", "--rule", "linear"]).out)))
    assert set(row["reasons"].split(";")) >= {"rule_mismatch", "large_growth", "no_warmup"}


def test_one_of_a_thing_is_singular():
    single = ib.plan(ib.Recipe(effective_batch=1, lr=1e-3), 1).explain()
    assert single.startswith("1 GPU: micro-batch 1 × accumulation 1 × 1 replica = 1 sample per step.")
    assert "# isobatch: 1 GPU, 256 samples a step = 256 × 1 × 1 replica\n" in str(
        ib.plan(adamw(), 1).to("transformers")
    )
    apart = ib.plan(adamw(model_parallel=2), 1).explain()
    assert apart.startswith(
        "Cannot train on 1 GPU as asked:\n  - 1 GPU is not a multiple of model_parallel 2"
    )
