"""`isobatch exec --state`: a run goes on from its checkpoint."""

import json
import os
import subprocess
import sys
import time

import pytest

import isobatch as ib

GROW = ("--policy", "grow", "--rule", "linear", "--set", "gpus=2", "--set", "micro_batch=12", "--state")
WORDS = ("--", "t", "{gpus}", "{micro_batch}", "{total_steps}")


def test_a_run_goes_on_from_the_step_of_its_state(become, tmp_path):
    state = tmp_path / "run" / "state.json"
    grow, words = GROW, ("--", "t", "{effective_batch}", "{lr}", "{total_steps}")
    assert become("--gpus", "2", *grow, str(state), *words)[0] == ["t", "24", "0.1", "84"]
    assert ib.Plan.load(tmp_path / "run" / "state.plan.json").world_size == 2
    state.write_text('{"step": 20}')
    # 20 steps of 24 are done, 64 of 24 are 128 of 12
    assert become("--gpus", "1", *grow, str(state), *words)[0] == ["t", "12", "0.05", "148"]
    state.write_text('{"step": 40}')
    moved, handed = become("--gpus", "2", *grow, str(state), *words)
    assert moved == ["t", "24", "0.1", "94"]
    assert [move.step for move in ib.Plan.load(handed["ISOBATCH_PLAN"]).moves] == [20, 40]
    state.write_text('{"step": 10}')  # an older checkpoint: what was behind it never happened
    assert become("--gpus", "2", *grow, str(state), *words)[0] == ["t", "24", "0.1", "84"]


def written(step, *legs, samples):
    """The state of an ElasticRun; a leg is its first step and its batch."""
    legs = [[start, 1, batch, 0] for start, batch in legs]
    state = {"schema": "isobatch.elastic/1", "step": step, "samples": samples, "seed": 0, "shuffle": True}
    recipe = {"effective_batch": 24, "lr": 0.1, "optimizer": "sgd", "duration": "84st", "warmup": "10%"}
    state |= {"recipe": {**recipe, "gpus": 2, "micro_batch": 12}, "legs": legs, "settings": [{}]}
    return json.dumps(state)


def test_the_lost_plan_of_a_run_that_moved_is_not_made_up(become, tmp_path):
    state, plan = tmp_path / "state.json", tmp_path / "state.plan.json"
    moved = written(40, (0, 24), (20, 12), samples=720)
    for text, why in (
        (moved, "24 samples a step from step 0 and 12 samples a step from step 20"),
        (written(40, (0, 12), samples=480), "12 samples a step from step 0"),
        ('{"step": 40, "samples": 720}', "720 samples in 40 steps, where these GPUs take 960"),
    ):
        state.write_text(text)
        for _ in range(2):
            code, error = become("--gpus", "2", *GROW, str(state), *WORDS)
            assert code == 2 and f"is of a run of {why}, and {plan} is missing: restore that file" in error
            assert not plan.exists()
    for text in (written(40, (0, 24), (20, 24), (40, 12), samples=960), '{"step": 40, "samples": 960}'):
        state.write_text(text)
        assert become("--gpus", "2", *GROW, str(state), *WORDS)[0][-1] == "84"
    state.write_text(moved)
    code, error = become("--gpus", "2", *GROW, str(state), *WORDS)
    assert code == 2 and f"{plan} has other batches" in error


@pytest.mark.parametrize("size", [0, 100])
def test_a_cut_plan_beside_a_state_is_to_be_restored(become, tmp_path, size):
    state, plan = tmp_path / "state.json", tmp_path / "state.plan.json"
    become("--gpus", "2", *GROW, str(state), *WORDS)
    plan.write_bytes(plan.read_bytes()[:size])
    state.write_text('{"step": 20}')
    code, error = become("--gpus", "1", *GROW, str(state), *WORDS)
    assert code == 2 and f"{plan}: is cut off or damaged: restore a copy of it" in error


def test_the_state_of_another_run_is_refused(become, tmp_path):
    state = tmp_path / "state.json"
    become("--gpus", "2", "--state", str(state), "--", "t", "{lr}")
    state.write_text('{"step": 20}')
    code, error = become("--gpus", "2", "--state", str(state), "--set", "lr=0.2", "--", "t", "{lr}")
    assert code == 2 and "is of another run: lr is 0.1 there, and 0.2 in FILE" in error
    state.write_text(json.dumps({"step": 20, "recipe": {"effective_batch": 48, "lr": 0.1}}))
    code, error = become("--gpus", "2", "--state", str(state), "--", "t", "{lr}")
    assert code == 2 and "is of another run: effective_batch is 48 there" in error
    state.write_text('{"loss": 1}')
    code, error = become("--gpus", "2", "--state", str(state), "--", "t", "{lr}")
    assert code == 2 and "step (or global_step) must be a number of steps, got None" in error


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_step_beyond_the_end_is_of_another_run(become, tmp_path, is_kept):
    state = tmp_path / "state.json"
    if is_kept:
        become("--gpus", "2", "--state", str(state), *WORDS)
    state.write_text('{"step": 85}')
    code, error = become("--gpus", "2", "--state", str(state), *WORDS)
    assert code == 2 and f"{state}: is at step 85, and this run ends at step 84: it is another run's" in error


def test_a_cut_state_is_to_be_restored_or_removed(become, tmp_path):
    state = tmp_path / "state.json"
    text = written(40, (0, 24), (20, 12), samples=720).replace(
        "{}", '{"policy": null, "a": "\\u12ab", "b": -1.5e-3}'
    )
    for size in range(len(text)):
        state.write_text(text[:size])
        code, error = become("--gpus", "2", *GROW, str(state), *WORDS)
        todo = "restore another copy of the checkpoint, or remove it to start anew"
        assert code == 2 and f"{state}: cannot be read: it is cut off or empty: {todo}" in error, text[:size]


def test_a_run_that_is_over_is_planned_for_these_gpus(become, tmp_path, capsys):
    state = tmp_path / "state.json"
    become("--gpus", "2", "--state", str(state), *WORDS)
    before = (tmp_path / "state.plan.json").read_bytes()
    state.write_text('{"step": 84}')
    words, handed = become("--gpus", "4", "--state", str(state), *WORDS)
    assert words == ["t", "4", "6", "84"]
    assert "the run is over: 84 of 84 steps are done" in capsys.readouterr().err
    assert ib.Plan.load(handed["ISOBATCH_PLAN"]).world_size == 4
    assert (tmp_path / "state.plan.json").read_bytes() == before


def test_a_run_that_is_over_does_not_begin_anew_where_the_batch_moves(become, tmp_path):
    state = tmp_path / "state.json"
    become("--gpus", "2", *GROW, str(state), *WORDS)
    state.write_text('{"step": 84}')
    # the whole run is 168 steps of 12, and the last of 84 steps of 24 is two of 12
    assert become("--gpus", "1", *GROW, str(state), *WORDS)[0] == ["t", "1", "12", "85"]


def test_a_rank_without_the_plan_of_rank_0_is_refused(become, tmp_path, monkeypatch):
    state = tmp_path / "state.json"
    state.write_text('{"step": 20}')
    monkeypatch.setattr("isobatch.cli.resuming._SECONDS_TO_WAIT", 0.3)
    code, error = become("--state", str(state), *WORDS, WORLD_SIZE="2", RANK="1")
    assert code == 2
    assert "state.plan.json: is not there for rank 1" in error and "on a disk that all ranks share" in error


def test_a_rank_waits_for_the_plan_of_rank_0(become, job, tmp_path):
    state = tmp_path / "state.json"
    state.write_text('{"step": 20}')
    words = [
        sys.executable,
        "-m",
        "isobatch",
        "exec",
        job,
        "--state",
        str(state),
        "--",
        "echo",
        "{micro_batch}",
    ]
    late = subprocess.Popen(words, env={**os.environ, "WORLD_SIZE": "2", "RANK": "1"}, stdout=-1, text=True)
    time.sleep(1)
    assert late.poll() is None
    become("--state", str(state), *WORDS, WORLD_SIZE="2", RANK="0")
    assert late.communicate(timeout=30)[0] == "12\n"


@pytest.mark.parametrize("cut", [None, "", '{"global_'])
def test_the_newest_whole_checkpoint_of_a_trainer_names_the_step(become, tmp_path, capsys, cut):
    out = tmp_path / "out"
    become("--gpus", "2", *GROW, str(out), *WORDS)
    for step, text in ((9, '{"global_step": 9}'), (20, '{"global_step": 20}'), (100, cut)):
        (out / f"checkpoint-{step}").mkdir()
        if text is not None:
            (out / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert become("--gpus", "1", *GROW, str(out), *WORDS)[0][-1] == "148"
    assert "checkpoint-100 is not whole: the run is taken as at step 20" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run/last.pt", "model.safetensors", "state.yaml", "notes"])
def test_a_state_that_is_none_is_refused_and_no_folder_is_made(become, tmp_path, name):
    (tmp_path / "notes").write_text("x")
    code, error = become("--gpus", "2", "--state", str(tmp_path / name), *WORDS)
    assert code == 2 and "is no state to read: give a JSON file with step" in error
    assert not (tmp_path / "run").exists()
