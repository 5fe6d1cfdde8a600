"""A fixed and a smallest micro-batch, a lowered batch, a batch above the dataset, AdamScale."""

from math import sqrt

import pytest

import isobatch as ib
from plan_of import plan_of

RECIPE = ib.Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", duration="1000st")


def rows(recipe, gpus, **settings):
    """The split on each count, None where there is none."""
    plans = [ib.plan(recipe, count, **settings) for count in gpus]
    return [plan.status != "infeasible" and plan.layout[:4] for plan in plans]


def test_a_fixed_micro_batch_is_the_only_one():
    fixed = {"min_micro_batch": 4, "max_micro_batch": 4}
    plans = rows(RECIPE, (2, 8, 64, 128), **fixed)
    assert plans == [(4, 32, 2, 256), (4, 8, 8, 256), (4, 1, 64, 256), False]
    stuck = ib.plan(RECIPE, 128, **fixed)
    assert stuck.reasons == (ib.Reason.MICRO_BATCH_UNMET,)
    assert "2 samples for each of 128 replicas cannot be split into micro-batches of 4" in stuck.explain()
    assert stuck.nearest_world_size == 64
    assert ib.plan(RECIPE, 8, **fixed).cap_source == "fixed"
    assert ib.plan(RECIPE, 16, policy="grow", **fixed).layout[:4] == (4, 8, 16, 512)


def test_no_micro_batch_is_below_the_least():
    plans = rows(RECIPE, (8, 16, 64, 128), min_micro_batch=4)
    assert plans == [(32, 1, 8, 256), (16, 1, 16, 256), (4, 1, 64, 256), False]
    # 508 = 4 × 127, a prime.
    prime = ib.Recipe(effective_batch=508, lr=0.1)
    loose, strict = (
        ib.plan(prime, 4, max_micro_batch=64, batch_tolerance=0.1, min_micro_batch=least) for least in (1, 50)
    )
    assert loose.effective_batch is not None
    assert strict.micro_batch >= 50
    assert ib.plan(RECIPE, 8, max_micro_batch=64, min_micro_batch=33).nearest_batch == 264  # 33 × 8
    capped = ib.plan(RECIPE, 8, min_micro_batch=33)
    assert "the tuned micro-batch 32 is below min_micro_batch 33" in capped.explain()
    assert capped.nearest_world_size is None  # on no number of GPUs


def test_a_least_micro_batch_of_thousands_is_found_at_once():
    million = 10**6
    large = {"effective_batch": 2**30 + 2, "min_micro_batch": million, "max_micro_batch": million}
    plan = plan_of(2, **large)
    assert plan.status == "infeasible"
    for batch in plan.nearest_batches:
        assert batch % (2 * million) == 0
        assert plan_of(2, policy=batch, **large).micro_batch == million


def test_a_least_micro_batch_holds_in_every_stage_of_a_ramp():
    recipe = ib.Recipe(effective_batch=512, lr=3e-4, ramp="128 128 4096", duration="99st")
    assert ib.plan(recipe, 8, min_micro_batch=16).micro_batch == 16
    stuck = ib.plan(recipe, 8, min_micro_batch=17)
    assert stuck.reasons == (ib.Reason.MICRO_BATCH_UNMET,)
    uneven = ib.plan(RECIPE, 5, split="uneven", min_micro_batch=32)
    assert uneven.micro_batch == 32
    assert ib.plan(RECIPE, 5, split="uneven", min_micro_batch=8, max_micro_batch=8).micro_batch == 8
    # 7 GPUs share 256 samples in 64 micro-batches of 4, or in 32 of 8; below 36, where each has one, none has
    # 33 or more.
    assert ib.plan(RECIPE, 7, split="uneven", min_micro_batch=33, max_micro_batch=64).status == "infeasible"


def test_the_batch_is_lowered_as_megatron_lowers_it():
    settings = {"split": "smaller", "min_micro_batch": 4, "max_micro_batch": 4}
    for gpus in range(1, 65):  # Megatron's --decrease-batch-size-if-needed
        assert ib.plan(RECIPE, gpus, **settings).effective_batch == 256 // (4 * gpus) * (4 * gpus)
    assert ib.plan(RECIPE, 65, **settings).status == "infeasible"
    assert "Batch size 256 → 252" in ib.plan(RECIPE, 7, split="smaller").explain()


def test_a_batch_above_the_dataset_is_one_short_step_an_epoch():
    recipe = ib.Recipe(effective_batch=256, lr=0.1, dataset_size=100, duration="3ep", gpus=8, micro_batch=32)
    refused = ib.plan(recipe, 8)
    assert refused.reasons == (ib.Reason.BATCH_ABOVE_DATASET,)
    assert "--short-epochs" in refused.explain()
    plan = ib.plan(recipe, 8, short_epochs=True)
    assert (plan.steps_per_epoch, plan.total_steps, plan.samples_per_epoch) == (1, 3, 104)
    assert ib.Reason.SHORT_EPOCHS in plan.reasons
    none = ib.Recipe(effective_batch=256, lr=0.1, dataset_size=100, drop_last=True, gpus=8, micro_batch=32)
    assert ib.plan(none, 8, short_epochs=True).status == "infeasible"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"min_micro_batch": 4, "max_micro_batch": 4, "micro_batch_multiple": 8}, "micro_batch_multiple"),
        ({"micro_batch_multiple": 8, "split": "ragged"}, "micro_batch_multiple"),
        ({"min_micro_batch": 4, "max_micro_batch": 4, "split": "ragged"}, "min_micro_batch"),
        ({"min_micro_batch": 0}, "min_micro_batch"),
        ({"min_micro_batch": 9, "max_micro_batch": 8}, "min_micro_batch"),
        ({"min_micro_batch": 2, "split": "ragged"}, "min_micro_batch"),
        ({"min_micro_batch": 2, "policy": "goodput"}, "min_micro_batch"),
        ({"split": "smaller", "batch_tolerance": 0.1}, "split"),
        ({"split": "smaller", "policy": "goodput"}, "split"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, field):
    with pytest.raises(ib.InputError) as caught:
        ib.plan(RECIPE, 8, **settings)
    assert caught.value.field == field


def test_options_contradict_nothing():
    """The ways out of a plan with these settings are plans: none is refused for what it is asked beside."""
    for settings in (
        {"split": "smaller", "min_micro_batch": 64, "max_micro_batch": 64},
        {"min_micro_batch": 20},
        {"min_micro_batch": 3, "max_micro_batch": 3},
        {"split": "smaller", "min_micro_batch": 32},
    ):
        for gpus in (7, 12, 100):
            plan = ib.plan(RECIPE, gpus, **settings)
            assert all(option.status != "infeasible" for option in plan.options)
            assert plan.explain()


def test_adamscale_takes_the_root_of_adascales_gain():
    """As AdaptDL's AdamScale: the learning rate by √r, the progress by r."""
    fields = {"lr": 1e-3, "sigma_sq": 3.0, "mu_sq": 0.5, "policy": 1024, "rule": "adamscale"}
    gain = (3 + 0.5) / (3 / 4 + 0.5)
    plan = plan_of(8, optimizer="adam", duration="1000st", warmup="100st", **fields)
    assert plan.lr == pytest.approx(1e-3 * sqrt(gain), rel=1e-15)
    assert (plan.total_steps, plan.warmup_steps) == (358, 36)  # ⌈1000 / 2.8⌉, ⌈100 / 2.8⌉
    assert ib.Reason.RULE_MISMATCH not in plan.reasons
    assert ib.Reason.RULE_MISMATCH in plan_of(8, optimizer="sgd", **fields).reasons
    moved = ib.replan(plan, at_step=100, effective_batch=2048)
    assert moved.total_steps < plan.total_steps
    assert ib.Plan.from_json(moved.to_json()) == moved
    assert plan.schedule.at(36) == pytest.approx(plan.lr)
