"""`isobatch replan`: what people see, files, and exit codes."""

import json

import pytest

import isobatch as ib
from allocation import pools
from isobatch.cli import main
from plan_of import recipe_of

RECIPE = recipe_of(optimizer="sgd", dataset_size=5120, duration="10ep", warmup="1ep", micro_batch=32)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    ib.plan(RECIPE, 8).save(path)
    return str(path)


def test_a_move_in_words(saved, ran):
    out = ran(["replan", saved, "--at-step", "50", "--gpus", "16", "--effective-batch", "512"]).out
    assert (
        """
The run: 125 steps, 20 of them warmup, then cosine to 0; same number of samples as the tuned run \
(steps counted as torch counts them).
Moved after step 50 (12,800 samples): 8 → 16 GPUs, batch size 256 → 512, learning rate 0.1 → 0.2.
Resume epoch 2 at sample 2,560: none is repeated or skipped.
If your optimizer folds the learning rate into its momentum, multiply the buffers by 2 (torch SGD \
does not) [Goyal et al. 2017"""
        in out
    )


def test_a_file_goes_through_any_number_of_moves(saved, tmp_path, ran):
    moved_there, back = str(tmp_path / "there.json"), str(tmp_path / "back.json")
    assert main(["replan", saved, "--at-step", "50", "--nodes", "2", "-o", moved_there]) == 0
    printed = ran(["replan", moved_there, "--at-step", "70", "--gpus", "8", "--json", "-o", back]).out
    plan = ib.Plan.load(back)
    assert json.loads(printed[printed.index("{") :]) == json.loads(plan.to_json())
    assert [move.step for move in plan.moves] == [50, 70]
    assert plan.schedule == ib.Plan.load(saved).schedule
    assert (
        ib.Plan.from_json(ran(["replan", moved_there, "--at-step", "70", "--gpus", "8", "-o", "-"]).out)
        == plan
    )


def test_seven_gpus_need_uneven(saved, ran):
    words = ["replan", saved, "--at-step", "50", "--gpus", "7"]
    assert ran(words, 1).out.startswith("Cannot train on 7 GPUs as asked")
    ran([*words, "--split", "uneven"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at-step", "50"], "nothing changes: give cluster or effective_batch"),
        (
            ["--at-step", "900", "--gpus", "4"],
            "--at-step must be a whole number from 0, up to 199, with a step left to do, got 900",
        ),
        (["--at-step", "5", "--gpus", "4", "--nodes", "2"], "--gpus goes without --nodes"),
        (["--at-step", "5", "--model-parallel", "2"], "cluster is missing: pass --gpus N"),
    ],
)
def test_wrong_use(saved, words, message, ran):
    assert message in ran(["replan", saved, *words], 2).err


def test_a_step_between_two_checkpoints_is_pointed_out(tmp_path, ran):
    path = str(tmp_path / "plan.json")
    ib.plan(ib.Recipe(effective_batch=256, lr=0.1, duration="20000st", save_every="1000st"), 8).save(path)
    err = ran(["replan", path, "--at-step", "12345", "--gpus", "4"]).err
    assert (
        "saves every 1,000 steps: if it resumes from the checkpoint of step 12,000, that is --at-step 12000"
        in err
    )
    assert ran(["replan", path, "--at-step", "12000", "--gpus", "4"]).err == ""


def test_a_menus_policy_is_taken_by_replan_too(saved, ran):
    """Menus print `--policy 512`, and `isobatch plan` takes it."""
    words = ["replan", saved, "--at-step", "50", "--gpus", "16"]
    batch = ["--effective-batch", "512"]
    assert ran([*words, "--policy", "512"]).out == ran([*words, *batch]).out
    both = ran([*words, *batch, "--policy", "512"], 2).err
    assert "--policy and --effective-batch both give the batch" in both


def test_a_file_that_is_no_plan_is_told_where_it_goes(saved, tmp_path, ran):
    script = tmp_path / "pretrain.sh"
    script.write_text("torchrun pretrain_gpt.py --micro-batch-size 2")
    (tmp_path / "job.json").write_text("{}")
    move = ["--at-step", "50", "--gpus", "16"]
    assert "another tool's file goes with --from" in ran(["replan", str(script), *move], 2).err
    assert "job.json: schema must be" in ran(["replan", str(tmp_path / "job.json"), *move], 2).err
    assert (
        "is a plan, not a recipe: isobatch replan moves the run"
        in ran(["plan", saved, "--gpus", "16"], 2).err
    )


def test_a_saved_plans_profile_is_asked_for_again(tmp_path, ran):
    path = tmp_path / "plan.json"
    ib.plan(RECIPE, 8, profile=pools.profile()).save(path)
    assert "give --profile again" in ran(["replan", str(path), "--at-step", "50", "--gpus", "16"]).err
