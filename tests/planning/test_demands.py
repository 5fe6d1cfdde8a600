"""Demands of other worlds on a batch: pipelines' passes, groups of generations; and intervals that follow the
samples.
"""

import numpy as np
import pytest

import isobatch as ib
from plan_of import recipe_of

PIPELINED = ib.Recipe(effective_batch=512, lr=3e-4, model_parallel=8, micro_batch=2, duration="1000st")


@pytest.mark.parametrize("policy", ["keep", "grow", 1024])
def test_groups_stay_in_one_step(policy):
    recipe = ib.Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=1e-5)
    for gpus in (3, 8, 12):
        plan = ib.plan(recipe, gpus, policy=policy, batch_multiple=12, batch_tolerance=0.1)
        assert plan.effective_batch % 12 == 0
    assert ib.plan(recipe, 8, batch_multiple=12).reasons == (ib.Reason.NOT_DIVISIBLE,)
    says = "256 samples are not a multiple of batch_multiple 12"
    assert says in ib.plan(recipe, 8, batch_multiple=12).explain()
    ragged = ib.plan(recipe, 7, batch_multiple=8, split="ragged")
    assert ragged.effective_batch == 256
    assert ib.plan(recipe, 7, batch_multiple=12, split="ragged").status == "infeasible"


def test_every_stage_of_a_ramp_has_them():
    recipe = ib.Recipe(effective_batch=512, lr=3e-4, ramp="128 128 4096", duration="99st")
    plan = ib.plan(recipe, 8, accumulation_multiple=8)
    assert plan.micro_batch == 2
    for stage in plan.stages:
        assert stage.batch // (2 * 8) % 8 == 0
    stuck = ib.plan(recipe, 8, accumulation_multiple=32)
    assert stuck.reasons == (ib.Reason.RAMP_NOT_DIVISIBLE,)
    assert "stage 1 of 4 of the ramp, 128 samples, is 16 for each of 8 replicas" in stuck.explain()


@pytest.mark.parametrize("name", ["accumulation_multiple", "batch_multiple"])
def test_a_search_by_goodput_refuses_them(name):
    with pytest.raises(ib.InputError, match=f"{name} must be .* not with .*goodput"):
        ib.plan(PIPELINED, 8, policy="goodput", **{name: 2})


@pytest.mark.parametrize("split", ["ragged", "uneven"])
def test_equal_passes_exclude_unequal_ones(split):
    with pytest.raises(ib.InputError, match="accumulation_multiple must be"):
        ib.plan(PIPELINED, 8, accumulation_multiple=2, split=split)


def test_a_fleet_has_them_by_row():
    jobs = {
        "effective_batch": np.array([512, 512]),
        "lr": np.array([0.1, 0.1]),
        "accumulation_multiple": np.array([1, 3]),
    }
    table = ib.plan_fleet(jobs, [8])
    assert list(table["status"]) == ["ok", "infeasible"]
    assert ib.Reason.of(int(table["reasons"][1])) == (ib.Reason.ACCUMULATION_UNMET,)
    assert (table["nearest_batch"][1], table["nearest_world_size"][1]) == (504, -1)


# ---- intervals ----

OFTEN = recipe_of(optimizer="sgd", dataset_size=25_600, duration="90ep", eval_every="500st",
    save_every="2.5ep", log_every="10st", gpus=8)  # fmt: skip


def test_a_move_converts_them_too():
    moved = ib.replan(ib.plan(OFTEN, 8), at_step=100, effective_batch=512)
    assert (moved.eval_steps, moved.save_steps, moved.log_steps) == (250, 125, 5)
    assert ib.Plan.from_json(moved.to_json()) == moved


@pytest.mark.parametrize("text", ["10%", "0st", "500", "often"])
def test_bad_intervals(text):
    with pytest.raises(ib.InputError, match="eval_every must be a number above 0 with a unit"):
        ib.Recipe(effective_batch=256, lr=0.1, eval_every=text)


def test_an_interval_in_epochs_needs_the_dataset():
    with pytest.raises(ib.InputError, match="dataset_size"):
        ib.Recipe(effective_batch=256, lr=0.1, log_every="1ep")


def test_the_plan_says_how_often():
    says = "evaluate every 125 steps, save every 63 steps, log every 3 steps"
    assert says in ib.plan(OFTEN, 8, policy=1024).explain()
