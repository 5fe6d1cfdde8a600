"""The published JSON Schemas take what isobatch writes, and refuse what it refuses."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

import isobatch as ib

ROOT = Path(__file__).parent.parent


def problems(name, value):
    """A schema's objections to a value."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / f"docs/schemas/{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]


def written(plan):
    return json.loads(plan.to_json())


RECIPE = ib.Recipe(effective_batch=256, lr=0.1, dataset_size=10_000, duration="3ep", warmup="10st")


def test_plans_of_every_sort_fit_their_schema():
    plan = ib.plan(RECIPE, 8).require()
    moved = ib.replan(plan, at_step=20, cluster=4)
    infeasible = ib.plan(RECIPE, 7)
    linear = ib.schedules.linear(0.1, 50)
    table = ib.plan(ib.Recipe(effective_batch=8, lr=0.1, duration="50st", schedule=linear), 2)
    for each in (plan, moved, infeasible, table):
        assert problems("plan", written(each)) == []


def test_the_first_saved_plans_fit_too():
    saved = json.loads((ROOT / "tests/data/plan-2.json").read_text(encoding="utf-8"))
    assert len(saved) > 1
    for name, plan in saved.items():
        assert problems("plan", plan) == [], name


def test_a_plan_with_another_field_or_value_does_not_fit():
    plan = written(ib.plan(RECIPE, 8))
    assert problems("plan", {**plan, "microbatch": 4})
    assert problems("plan", {**plan, "micro_batch": "4"})
    assert problems("plan", {**plan, "schema": "isobatch.plan/3"})
    assert problems("plan", {**plan, "settings": {**plan["settings"], "rulee": "sqrt"}})


def test_recipes_by_batch_or_by_gpus_fit(tmp_path):
    assert problems("recipe", tomllib.loads((ROOT / "examples/job.toml").read_text(encoding="utf-8"))) == []
    RECIPE.save(tmp_path / "recipe.json")
    assert problems("recipe", json.loads((tmp_path / "recipe.json").read_text())) == []
    assert problems("recipe", {"lr": 0.1, "batch_per_gpu": 4})
    assert problems("recipe", {"lr": 0.1, "batch_per_gpu": 4, "gpus": 2}) == []
    assert problems("recipe", {"effective_batch": 4})
    assert problems("recipe", {"effective_batch": 4, "lr": 0.1, "optimiser": "sgd"})


def test_a_profile_fits():
    profile = ib.Profile.estimate(parameters=10**9, flops_per_sample=6e12, gpu_tflops=989)
    profile_fields = json.loads(json.dumps(msgspec.to_builtins(profile)))
    assert problems("profile", profile_fields) == []
    assert problems("profile", {**profile_fields, "schema": 2})
    assert problems("profile", {**profile_fields, "compute_constant": 0.1})


def test_the_doctors_answers_fit(tmp_path, capsys):
    from isobatch.cli import main

    (tmp_path / "broken.json").write_text("{")
    files = [str(ROOT / "examples/training_args.json"), str(tmp_path / "broken.json")]
    assert main(["doctor", *files, "--gpus", "64", "--set", "gpus=8", "--json"]) == 2
    answer, broken = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert problems("doctor", answer) == [] and problems("doctor", broken) == []
    assert problems("doctor", {**answer, "schema": "isobatch.doctor/2"})
    assert problems("doctor", {**answer, "findings": [{"level": "bad"}]})
