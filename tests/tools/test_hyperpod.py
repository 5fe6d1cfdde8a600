"""HyperPod's `scale_config`: read, its rows examined on each instance type, and read again as written."""

import pytest
import yaml

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools.platforms import write
from tools.test_reading import written

UNEVEN = {"num_dp_groups_with_small_batch_size": 16, "small_local_batch_size": 2, "large_local_batch_size": 3}


def row(nodes, **arguments):
    return {
        "trainer": {"num_nodes": nodes},
        "training_config": {"training_args": {"train_batch_size": 128, "learning_rate": 4e-4, **arguments}},
    }


def recipe(tmp_path, rows, **more):
    types = ["ml.g6.12xlarge", "ml.p5.48xlarge", "ml.g6e.12xlarge"]
    scale = {row["trainer"]["num_nodes"]: row for row in rows}
    table = {"instance_types": types, "scale_config": scale, **more}
    return written(tmp_path, "recipe.yaml", yaml.safe_dump(table, sort_keys=False))


def test_a_row_that_does_not_add_up_is_named_with_its_instance_types(tmp_path, ran):
    file = recipe(tmp_path, [row(2, micro_train_batch_size=4), row(6, uneven_batch=UNEVEN)])
    (finding,) = examine(file).findings
    why = "16 × 2 + 8 × 3 = 56 samples, not 128"
    types = "ml.g6.12xlarge, ml.g6e.12xlarge"
    assert finding.what == f"the row for 6 nodes does not add up on {types}: {why}"
    right = "num_dp_groups_with_small_batch_size: 16, small_local_batch_size: 5, large_local_batch_size: 6"
    assert finding.change == right
    assert f"rows for 2, 6 nodes of 4 GPUs ({types}); 8 GPUs" in ran(["doctor", str(file)], 1).out
    assert examine(file, 16).healthy
    assert "128 samples cannot be split evenly over 48" in examine(file, 48).findings[0].what
    assert not examine(file, 24).healthy
    absent, _ = examine(file, 40).findings
    assert absent.what == "no row is for 40 GPUs"


@pytest.mark.parametrize(
    ("arguments", "difference", "change"),
    [
        ({"uneven_batch": UNEVEN | {"small_local_batch_size": 40, "num_dp_groups_with_small_batch_size": 9}},
         "9 small groups are more than the 8 that there are",
         "micro_train_batch_size: 16, and no uneven_batch"),
        ({"micro_train_batch_size": 3}, "128 samples are not a multiple of 3 × 8",
         "micro_train_batch_size: 2, and no uneven_batch"),
        ({"train_batch_size": 6, "micro_train_batch_size": 1}, "6 samples are not a multiple of 1 × 8",
         "no row: 6 samples are fewer than 8 GPUs"),
    ],
)  # fmt: skip
def test_rows_that_do_not_add_up_have_a_change(tmp_path, arguments, difference, change):
    file = recipe(tmp_path, [row(1, **arguments)], instance_types=["ml.p5.48xlarge"])
    (finding,) = examine(file).findings
    assert finding.what == f"the row for 1 node does not add up on ml.p5.48xlarge: {difference}"
    assert finding.change == change
    ring = {"training_args": {"ring_attn_size": 8}}
    assert examine(recipe(tmp_path, [row(1, micro_train_batch_size=4)], training_config=ring), 8).healthy


def test_rows_stand_over_the_recipes_own_arguments(tmp_path):
    bare = row(3)
    del bare["training_config"]["training_args"]["train_batch_size"]
    own = {"training_args": {"train_batch_size": 96, "micro_train_batch_size": 4}}
    file = recipe(tmp_path, [bare], training_config=own, trainer={"devices": 8})
    assert examine(file).healthy and ib.Recipe.read(file, duration="9st").effective_batch == 96
    off = row(3, uneven_batch=UNEVEN | {"use_uneven_batch": False}, train_batch_size=96)
    assert examine(recipe(tmp_path, [off], training_config=own, trainer={"devices": 8})).healthy


def test_settings_common_to_rows_are_the_recipe(tmp_path):
    lora = ["/hydra_config/llmft/peft/lora", "_self_"]
    file = recipe(tmp_path, [row(1, micro_train_batch_size=4), row(2)], defaults=lora)
    read = ib.Recipe.read(file, duration="1000st")
    assert (read.effective_batch, read.lr, read.adapter) == (128, 4e-4, "lora")
    file = recipe(tmp_path, [row(1), row(2, train_batch_size=256)])
    says = "rows differ: 128 at 1 node; 256 at 2 nodes. Give effective_batch"
    with pytest.raises(ib.InputError, match=says):
        ib.Recipe.read(file, duration="1000st")
    assert "rows differ" in examine(file).text and examine(file).healthy


def test_a_row_that_is_none_is_named(tmp_path):
    for bad, place in (
        (row("x"), "scale_config.x.trainer.num_nodes"),
        (row(2, train_batch_size=0), "scale_config.2.training_config.training_args.train_batch_size"),
        (row(2, learning_rate=[1]), "scale_config.2.training_config.training_args.learning_rate"),
        (row(2, uneven_batch={}), "scale_config.2.training_config.training_args.uneven_batch.num_dp"),
    ):
        with pytest.raises(ib.InputError, match=f"recipe.yaml: {place}.* must be a (whole )?number"):
            examine(recipe(tmp_path, [bad]))
    strange = recipe(tmp_path, [row(1)], instance_types=["ml.z9.metal"])
    assert "ml.z9.metal: GPUs of such a node are not known here" in examine(strange, 4).text
    with pytest.raises(ib.InputError, match="gpus is missing: the number of GPUs"):
        examine(written(tmp_path, "a.json", '{"per_device_train_batch_size": 8, "learning_rate": 1e-4}'))


@pytest.mark.parametrize("each", [4, 8])
def test_written_rows_add_up(tmp_path, each):
    tuned = ib.Recipe(effective_batch=128, lr=4e-4, duration="1000st")
    node = ib.Cluster(gpus_per_node=each)
    text, _ = write(ib.counts(tuned, range(1, 129), cluster=node, split="ragged"), "hyperpod")
    examination = examine(written(tmp_path, "scale.yaml", text))
    assert examination.healthy and examination.batch == 128 and f"nodes of {each} GPUs" in examination.text
