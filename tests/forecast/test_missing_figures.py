"""An unverifiable limit names the missing field, in a plan and in a fleet."""

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.recipes.names import product_of
from reference.profile import profile_of

RECIPE = {"effective_batch": 256, "lr": 0.1}


@pytest.mark.parametrize(
    ("recipe", "cluster", "limit", "reason", "says"),
    [
        ({"duration": "9st"}, {}, {"budget": 1}, "needs_price", "price_per_gpu_hour"),
        ({}, {"price_per_gpu_hour": 1.0}, {"budget": 1}, "needs_duration", "duration"),
        ({}, {}, {"deadline_hours": 1}, "needs_duration", "duration"),
        ({}, {}, {"deadline_hours": 1, "budget": 1}, "needs_duration", "duration"),
    ],
)
def test_the_one_field_that_is_missing_is_named(recipe, cluster, limit, reason, says):
    where = ib.Cluster(nodes=1, gpus_per_node=8, **cluster)
    plan = ib.plan(ib.Recipe(**RECIPE, **recipe), where, profile=profile_of(), **limit)
    assert [cause.value for cause in plan.reasons if cause.severity == "infeasible"] == [reason]
    assert says in plan.explain() and "nodes" not in ib.Reason(reason).text
    table = ib.plan_fleet([ib.Recipe(**RECIPE, **recipe)], [where], profile=profile_of(), **limit)
    assert ib.Reason.of(table["reasons"]) == [tuple(plan.reasons)]


def test_limits_with_all_figures_are_checked():
    where = ib.Cluster(nodes=1, gpus_per_node=8, price_per_gpu_hour=1.0)
    recipe = ib.Recipe(**RECIPE, duration="9st")
    assert ib.plan(recipe, where, profile=profile_of(), deadline_hours=9, budget=9).status != "infeasible"


def test_the_summary_names_the_first_row(tmp_path, ran):
    pytest.importorskip("pyarrow")
    jobs, clusters = tmp_path / "jobs.csv", tmp_path / "clusters.csv"
    jobs.write_text("job,effective_batch,lr,duration\na,256,0.1,9st\nb,256,0.1,\n")
    clusters.write_text("cluster,nodes,gpus_per_node,price_per_gpu_hour\npriced,1,8,2\nfree,1,8,\n")
    profile_of().save(tmp_path / "profile.json")
    words = ["fleet", str(jobs), str(clusters), "--profile", str(tmp_path / "profile.json"), "--budget", "9"]
    text = ran(words).err
    price = next(line for line in text.splitlines() if "needs_price" in line)
    length = next(line for line in text.splitlines() if "needs_duration" in line)
    assert price.endswith(f"first in job a ({jobs}, row 1), cluster free ({clusters}, row 2)")
    assert length.endswith(f"first in job b ({jobs}, row 2), cluster priced ({clusters}, row 1)")


@pytest.mark.parametrize(
    ("names", "product"),
    [
        (["micro_batch", "accumulation", "gpus"], "micro_batch × accumulation × gpus"),
        (
            ["per_device_train_batch_size", "gradient_accumulation_steps", "world_size"],
            "per_device_train_batch_size × gradient_accumulation_steps × world_size (and rename world_size "
            "to gpus: plans have a column of that name)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:not fields")  # accumulation by another name, which is carried along
def test_a_table_in_trainers_words_says_what_to_multiply(tmp_path, names, product):
    pytest.importorskip("pyarrow")
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(f"{','.join(names)},lr\n32,2,8,0.1\n")
    with pytest.raises(ib.InputError) as caught:
        ib.plan_fleet(jobs, [8])
    assert str(caught.value) == f"{jobs}: effective_batch is missing: add the column, {product}"
    columns = {name: np.array([value]) for name, value in zip(names, (32, 2, 8), strict=True)}
    with pytest.raises(ib.InputError) as caught:
        ib.plan_fleet(columns | {"lr": np.array([0.1])}, [8])
    code = str(caught.value).partition("missing: ")[2].partition(" (and")[0]
    assert code.startswith('jobs["effective_batch"] = ')
    tables = {"jobs": columns | {"lr": np.array([0.1])}}
    exec(code, tables)
    tables["jobs"]["gpus"] = tables["jobs"].pop(names[-1])
    assert ib.plan_fleet(tables["jobs"], [8])["effective_batch"].tolist() == [512]


def test_a_batch_by_another_name_is_renamed_not_multiplied():
    columns = {name: np.array([8]) for name in ("global_batch_size", "micro_batch", "gpus", "lr")}
    with pytest.raises(ib.InputError, match="effective_batch is missing: rename 'global_batch_size'"):
        ib.plan_fleet(columns, [8])


def test_a_recipe_in_trainers_words_says_what_to_multiply(ran):
    fields = ["micro_batch=32", "accumulation=2", "gpus=8", "lr=0.1"]
    text = ran(["plan", *(word for field in fields for word in ("--set", field)), "--gpus", "8"], 2).err
    product = "effective_batch=512, which is micro_batch × accumulation × gpus"
    assert f"give {product}, or batch_per_gpu instead of micro_batch" in text
    fields[0] = "batch_per_gpu=32"
    assert main(["plan", *(word for field in fields for word in ("--set", field)), "--gpus", "8"]) == 0
    with pytest.raises(ib.InputError, match="effective_batch is missing: Recipe needs it"):
        ib.Recipe.of({"lr": 0.1})
    assert product_of(["lr"]) == []


def test_a_batch_that_divides_stays_within_the_tolerance():
    recipe = ib.Recipe(effective_batch=1308, lr=0.1)
    plan = ib.plan(recipe, 12, max_micro_batch=8, batch_tolerance=0.05)
    assert (plan.effective_batch, plan.micro_batch, plan.accumulation) == (1308, 1, 109)
    plan = ib.plan(recipe, 12, max_micro_batch=8, batch_tolerance=0.05, min_micro_batch=8)
    assert (plan.effective_batch, plan.micro_batch, plan.accumulation) == (1344, 8, 14)
