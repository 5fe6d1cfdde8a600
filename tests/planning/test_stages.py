"""The stages of a ramp: shown, asked for step by step, named where they do not divide, and left behind by a
run under way.
"""

import itertools
import json
import re

import pytest

import isobatch as ib
from isobatch.cli import main
from plan_of import recipe_of

RAMPED = recipe_of(lr=1e-3, gpus=8, ramp="32 32 100000", duration="1000000sp", warmup="10%")


def batches(plan, count=2000):
    consumed = [plan.position(step).samples for step in range(count + 1)]
    return [after - before for before, after in itertools.pairwise(consumed)]


def test_the_batch_of_each_step_is_what_it_consumes():
    plan = ib.plan(RAMPED, 8)
    assert [plan.batch_at(step) for step in range(2000)] == batches(plan)
    moved = ib.replan(plan, at_step=600, effective_batch=512, rule="none")
    assert [moved.batch_at(step) for step in range(2000)] == batches(moved)
    assert [stage.batch for stage in moved.stages if stage.step >= 600] == [128, 192, 256, 320, 384, 448, 512]


def test_the_plan_shows_its_stages():
    text = ib.plan(RAMPED, 8).explain()
    assert "The batch grows in 8 stages:\n  from step 0: 32 samples (4 × 1 × 8)\n" in text
    assert "  from step 1,159: 256 samples (4 × 8 × 8)" in text
    long = ib.Recipe(effective_batch=2048, lr=1e-4, ramp="192 16 9765625", duration="220e6sp")
    shown = [line for line in ib.plan(long, 8).explain().splitlines() if line.startswith("  ")]
    assert len(shown) == 8
    assert shown[4] == "  … 110 more …"


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_no_step_no_batch(step):
    with pytest.raises(ib.InputError, match="step must be a whole number from 0"):
        ib.plan(RAMPED, 8).batch_at(step)


# ---- a stage that does not divide ----


def test_the_stage_is_named_with_a_ramp_that_divides():
    stuck = ib.plan(RAMPED, 64)
    assert stuck.reasons == (ib.Reason.RAMP_NOT_DIVISIBLE,)
    stage = r"stage 1 of 8 of the ramp, 32 samples, cannot be split evenly over 64 replicas"
    match = re.search(rf'{stage}; ramp="([^"]+)" can', stuck.explain())
    assert match[1] == "64 64 100000"
    mended = ib.Recipe(effective_batch=256, lr=1e-3, ramp=match[1], duration="1000000sp")
    assert ib.plan(mended, 64).status == "ok"


def test_a_stage_in_the_middle_is_named():
    recipe = ib.Recipe(effective_batch=256, lr=1e-3, ramp="0:64 1M:96 2M:256", seq_len=128, duration="1e6sp")
    stage = "stage 2 of 3 of the ramp, 96 samples, cannot be split evenly over 64 replicas"
    assert f'{stage}; ramp="0:64 1M:128 2M:256" can' in ib.plan(recipe, 64).explain()
    assert "stage 1 of 8 of the ramp would be 31.2 samples" in ib.plan(RAMPED, 1, policy=250).explain()


def test_nearest_counts_and_batches_are_those_of_all_stages():
    stuck = ib.plan(RAMPED, 7)
    assert stuck.nearest_batches == (224, 280)
    assert stuck.nearest_world_sizes == (4, 8)
    assert ib.plan(RAMPED, 7, batch_tolerance=0.1).effective_batch == 280


@pytest.mark.parametrize(
    "settings", [{"split": "ragged"}, {"split": "uneven"}, {"split": "uneven", "max_micro_batch": 3}]
)
@pytest.mark.parametrize("gpus", [3, 5, 7, 32])
def test_counts_that_divide_no_stage(gpus, settings):
    plan = ib.plan(RAMPED, gpus, **settings)
    assert plan.effective_batch == 256
    even = ib.plan(RAMPED, 8)
    assert [plan.batch_at(step) for step in range(1500)] == [even.batch_at(step) for step in range(1500)]
    if ib.Reason.UNEVEN in plan.reasons:
        for stage in plan.stages:  # whole micro-batches, one for each replica at least
            assert stage.batch % plan.micro_batch == 0
            assert stage.batch // plan.micro_batch >= gpus
    assert ib.Plan.from_json(plan.to_json()) == plan


def test_a_stage_below_the_replicas_is_refused():
    for settings in ({"split": "ragged"}, {"split": "uneven"}):
        assert ib.plan(RAMPED, 33, **settings).status == "infeasible"


@pytest.mark.parametrize("ramp", ["160 48 1000", "192 16 1000 1000", "0:128", "300 16 1000", "1 1 1000"])
def test_a_ramp_that_does_not_end_at_the_batch_is_no_recipe(ramp):
    full = 1 + 2**15 if ramp == "1 1 1000" else 257
    with pytest.raises(
        ib.InputError, match="ramp must be .* that end at effective_batch in whole increments"
    ):
        ib.Recipe(effective_batch=full, lr=0.1, ramp=ramp, seq_len=16)


# ---- a run under way ----


def test_behind_a_stage_it_does_not_count():
    plan = ib.plan(RAMPED, 8)
    assert ib.replan(plan, at_step=10, cluster=64).status == "infeasible"
    last = plan.stages[-1].step
    assert ib.replan(plan, at_step=last - 1, cluster=64).reasons == (ib.Reason.RAMP_NOT_DIVISIBLE,)
    moved = ib.replan(plan, at_step=last, cluster=64)
    assert (moved.micro_batch, moved.accumulation, moved.reasons) == (4, 1, plan.reasons)
    assert moved.total_steps == plan.total_steps
    assert moved.schedule == plan.schedule
    assert moved.consumed == plan.position(last).samples
    assert "The batch grows" not in moved.explain()


def test_a_stage_that_is_left_is_named_by_its_number():
    plan = ib.plan(RAMPED, 8)
    stuck = ib.replan(plan, at_step=plan.stages[5].step, cluster=64)
    assert stuck.nearest_world_sizes[0] == 32
    assert "stage 7 of 8 of the ramp, 224 samples, cannot be split evenly over 64 replicas" in stuck.explain()
    assert ib.replan(plan, at_step=plan.stages[5].step, cluster=64, split="ragged").status == "caution"


def test_a_batch_whose_past_stages_are_not_whole():
    recipe = ib.Recipe(effective_batch=4, lr=1e-3, ramp="1 1 100", duration="1000sp")
    plan = ib.plan(recipe, 1)
    assert ib.plan(recipe, 1, policy=6).status == "infeasible"
    moved = ib.replan(plan, at_step=plan.stages[-1].step, effective_batch=6, rule="none")
    assert (moved.effective_batch, moved.batch_at(moved.total_steps - 1)) == (6, 6)
    assert batches(moved, moved.total_steps) == [moved.batch_at(step) for step in range(moved.total_steps)]


def test_a_moved_ramp_is_saved_and_checked(tmp_path):
    plan = ib.plan(RAMPED, 8)
    moved = ib.replan(plan, at_step=plan.stages[-1].step, cluster=64)
    moved = ib.replan(moved, at_step=3000, cluster=256).require()
    moved.save(tmp_path / "run.json")
    assert ib.Plan.load(tmp_path / "run.json") == moved
    fields = json.loads((tmp_path / "run.json").read_text())
    fields["consumed"] += 1
    with pytest.raises(ib.InputError, match="consumed"):
        ib.Plan.from_json(json.dumps(fields))


def test_an_infeasible_move_has_moves_as_options(tmp_path, ran):
    plan = ib.plan(RAMPED, 8)
    stuck = ib.replan(plan, at_step=3000, cluster=7)
    assert stuck.status == "infeasible"
    splits = [(way_out.effective_batch, way_out.world_size) for way_out in stuck.options]
    assert splits == [(259, 7), (256, 7), (256, 7), (256, 4), (256, 8)]
    for option in stuck.options:
        assert [move.step for move in option.moves] == [3000]
        assert option == ib.replan(plan, at_step=3000, cluster=option.cluster, **option.settings.changed())
    plan.save(tmp_path / "run.json")
    command = ["replan", str(tmp_path / "run.json"), "--at-step", "3000"]
    menu = ran([*command, "--gpus", "7"], 1).out.partition("What would work:\n")[2].splitlines()
    assert len(menu) == 5
    for line in menu:
        flags = line.split("   ")[-1].split()
        assert main([*command, *([] if "--gpus" in flags else ["--gpus", "7"]), *flags]) == 0, flags


def test_a_batch_that_cannot_be_is_called_as_the_command_line_calls_it():
    plan = ib.plan(ib.Recipe(effective_batch=256, lr=1e-3, duration="100st"), 8)
    stuck = ib.replan(plan, at_step=50, effective_batch=1001)
    assert "without --effective-batch" in stuck.explain()


# ---- the learning rate of a stage ----


def test_the_learning_rate_follows_the_stages_where_that_is_asked():
    recipe = recipe_of(lr=1e-3, ramp="32 32 100000", duration="1e6sp", schedule="constant")
    plain, ruled = ib.plan(recipe, 8), ib.plan(recipe, 8, ramp_rule="sqrt")
    assert plain.status == "ok"
    assert ruled.reasons == (ib.Reason.RAMP_RULE,)
    assert "2505.23971" in ruled.explain()
    assert "from step 0: 32 samples (4 × 1 × 8), learning rate × 0.354" in ruled.explain()
    for step in (0, 446, 447, 1158, 1159, 4000):
        assert plain.lr_at(step) == 1e-3
        assert ruled.lr_at(step) == pytest.approx(1e-3 * (ruled.batch_at(step) / 256) ** 0.5, rel=1e-15)
    assert ib.plan(recipe, 8, ramp_rule="auto").lr_at(0) == ruled.lr_at(0)
    assert ib.plan(recipe, 8, ramp_rule="linear").lr_at(0) == 1e-3 / 8
    assert ib.Plan.from_json(ruled.to_json()).schedule == ruled.schedule
    moved = ib.replan(ruled, at_step=500, cluster=4)
    assert moved.schedule == ruled.schedule


def test_a_rule_of_more_than_the_learning_rate_is_refused():
    for rule in ("sde", "adascale"):
        with pytest.raises(ib.InputError, match="ramp_rule must be none, linear, sqrt"):
            ib.plan(RAMPED, 8, ramp_rule=rule)
