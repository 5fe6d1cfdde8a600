"""Plans in files: those of every schema that was released, those of a newer one, and those that were
changed.
"""

import json
from pathlib import Path

import pytest

import isobatch as ib
from plan_of import EPOCHS, plan_of, recipe_of
from reference.profile import profile_of

DATA = Path(__file__).parent.parent / "data"
RELEASED = json.loads((DATA / "plan-2.json").read_text(encoding="utf-8"))
RECIPE = recipe_of(**EPOCHS, weight_decay=1e-4)
PROFILE = profile_of(overlap=1.0, intra_gb_s=1.0, memory_fixed_gib=2.0, noise_scale=2048.0)
NODE = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=2.0, memory_gib=10)


def made():
    run = ib.plan(RECIPE, 8, max_micro_batch=32)
    moved = ib.replan(run, at_step=31, cluster=4)
    return {
        "plain": run,
        "moved": moved,
        "moved twice": ib.replan(moved, at_step=50, effective_batch=512),
        "ragged": ib.plan(RECIPE, 7, split="ragged", max_micro_batch=16),
        "uneven": ib.plan(RECIPE, 7, split="uneven", max_micro_batch=16),
        "grown": ib.plan(RECIPE, 8, policy=1024, rule="sqrt"),
        "infeasible": ib.plan(RECIPE, 7),
        "profile": ib.plan(RECIPE, NODE, profile=PROFILE),
        "goodput": ib.plan(RECIPE, NODE, profile=PROFILE, policy="goodput", max_batch=2048),
        "goodput, longer than its samples": plan_of(2, effective_batch=4, duration="250sp",
            convention="megatron", noise_scale=1e4, profile=PROFILE, policy="goodput", max_batch=512),
        "too late": ib.plan(RECIPE, NODE, profile=PROFILE, deadline_hours=1e-3),
        "moved by profile": ib.replan(ib.plan(RECIPE, NODE, profile=PROFILE), at_step=50, cluster=4,
            profile=PROFILE),
    }  # fmt: skip


MADE = made()


@pytest.mark.parametrize("name", RELEASED)
def test_plans_of_the_released_schema_are_read(name):
    plan = ib.Plan.from_json(json.dumps(RELEASED[name]))
    for field in ["status", "rule", "micro_batch", "effective_batch", "lr", "total_steps", "steps_per_epoch"]:
        assert getattr(plan, field) == RELEASED[name][field]
    if plan.status != "infeasible" and plan.total_steps:
        assert plan.lr_at(plan.total_steps // 2) > 0
    again = ib.Plan.from_json(plan.to_json().replace(f'"{ib.__version__}"', '"0.0.1"'))
    assert again == plan


@pytest.mark.parametrize("name", MADE)
def test_a_plan_is_what_was_saved(name, tmp_path):
    plan = MADE[name]
    plan.save(tmp_path / "plan.json")
    again = ib.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert type(again) is type(plan)
    assert json.loads(plan.to_json())["settings"]["policy"] == plan.policy


def test_a_newer_or_older_schema_says_what_to_do():
    text = MADE["plain"].to_json()
    with pytest.raises(ib.InputError) as caught:
        ib.Plan.from_json(text.replace("isobatch.plan/2", "isobatch.plan/9"), file="run.json")
    assert str(caught.value) == (
        "run.json: schema 'isobatch.plan/9' is newer than this isobatch reads ('isobatch.plan/2'): upgrade "
        "isobatch"
    )
    with pytest.raises(ib.InputError, match="plan/1' is older than this isobatch reads .* plan again"):
        ib.Plan.from_json(text.replace("isobatch.plan/2", "isobatch.plan/1"))
    for schema in ("isobatch.report/1", "isobatch.plan/x", ""):
        with pytest.raises(ib.InputError, match="schema must be 'isobatch.plan/2'"):
            ib.Plan.from_json(text.replace("isobatch.plan/2", schema))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("plain", {"micro_batch": 99}, "effective_batch"),
        ("plain", {"micro_batch": 99, "effective_batch": 99 * 8}, None),
        ("plain", {"micro_batch": 64, "effective_batch": 512}, "micro_batch"),  # above the cap
        ("plain", {"lr": 0.2}, None),
        ("plain", {"lr": 0.0}, "lr"),
        ("plain", {"total_steps": 5}, None),
        ("plain", {"world_size": 9}, "world_size"),
        ("plain", {"status": "infeasible"}, "status"),
        ("plain", {"reasons": ["not_divisible"]}, "status"),
        ("infeasible", {"micro_batch": 4}, "micro_batch"),
        ("ragged", {"micro_batch": 2**30}, "effective_batch"),
        ("profile", {"micro_batch": 8}, "effective_batch"),
        ("profile", {"lr": 0.3}, None),
        ("moved", {"total_steps": 7}, None),
    ],
)
def test_a_plan_that_was_edited_is_refused_by_the_fields_that_differ(name, changes, field, older):
    text = json.loads(MADE[name].to_json()) | changes
    if older:
        if field is None:
            return
        text["isobatch"] = "0.0.1"
    with pytest.raises(ib.InputError) as caught:
        ib.Plan.from_json(json.dumps(text), file="run.json")
    assert str(caught.value).startswith("run.json: ")
    assert field in (None, caught.value.field)
    if field is None:
        for key, value in changes.items():
            assert f"{key} is {value}" in str(caught.value) or len(changes) > 1


def test_changed_results_of_a_saved_plan_are_named():
    text = json.loads(MADE["plain"].to_json()) | {"lr": 0.2, "total_steps": 5}
    with pytest.raises(ib.InputError, match=r"lr is 0\.2, expected 0\.1; total_steps is 5, expected 200"):
        ib.Plan.from_json(json.dumps(text))


def test_moves_that_did_not_happen_are_refused():
    text = json.loads(MADE["moved twice"].to_json())
    steps = [("step", step) for step in (5, 2**60, -1)]
    for name, value in (*steps, ("offset", 0), ("samples", 7), ("velocity_factor", 3.0)):
        wrong = json.loads(json.dumps(text))
        wrong["moves"][1][name] = value
        with pytest.raises(ib.InputError):
            ib.Plan.from_json(json.dumps(wrong))
    wrong = json.loads(json.dumps(text))
    wrong["moves"][0]["before"]["lr"] = 0.3
    with pytest.raises(ib.InputError, match=r"lr is 0\.3, expected 0\.1"):
        ib.Plan.from_json(json.dumps(wrong))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '{"schema": 1}', "[" * 100_000, '{"a":' * 50_000, '{"schema":"isobatch.plan/2"}'],
)
def test_bad_plan_files(text):
    with pytest.raises(ib.InputError):
        ib.Plan.from_json(text)


def test_a_batch_that_goodput_and_a_tolerance_found_is_read_back_even():
    # Goodput's own batch has no whole stages; the one within the tolerance has, and is dealt evenly though
    # ragged is allowed.
    fields = {"effective_batch": 60, "lr": 1e-3, "dataset_size": 50_000, "duration": "1e5sp"}
    recipe = ib.Recipe(**fields, convention="megatron", noise_scale=1000.0, ramp="30 15 2400")
    profile = ib.Profile.estimate(parameters=10**9, flops_per_sample=1e10, gpu_tflops=300, intra_gb_s=0.1)
    for most in range(100, 200):
        plan = ib.plan(
            recipe, 2, policy="goodput", split="ragged", batch_tolerance=0.3, max_batch=most, profile=profile
        )
        assert ib.Plan.from_json(plan.to_json()) == plan
