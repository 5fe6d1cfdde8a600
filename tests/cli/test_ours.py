"""A recipe in place of a saved plan, or the reverse: the command that helps is named."""

import json

import pytest

import isobatch as ib
from isobatch.cli import main


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('effective_batch = 64\nlr = 3e-3\nduration = "94st"\n')
    return str(path)


@pytest.mark.parametrize("command", [["schedule"], ["explain"]])
def test_a_recipe_is_planned_first(recipe, command, ran):
    output = ran([command[0], recipe, *command[1:]], 2).err
    assert f"is a recipe: plan it first, by isobatch plan {recipe} --gpus N -o plan.json" in output
    assert output.count("\n") == 1


def test_a_saved_plan_in_words(recipe, tmp_path, capsys, ran):
    plans = tmp_path / "plan.json"
    text = ran(["plan", recipe, "--gpus", "8", "-o", str(plans)]).out
    assert ran(["explain", str(plans)]).out == text
    assert main(["explain", str(plans), "--job", "a"]) == 2
    assert "--job picks rows of a table, and this is one plan" in capsys.readouterr().err
    none = tmp_path / "none.json"
    ib.plan(ib.Recipe.load(recipe), 7).save(none)
    assert ran(["explain", str(none)], 1).out.startswith("Cannot train on 7 GPUs")


def test_other_json_is_left_to_its_reader(tmp_path, ran):
    second = tmp_path / "a.json"
    second.write_text(json.dumps({"a": 1}))
    assert "cannot tell the format" in ran(["explain", str(second)], 2).err


@pytest.mark.parametrize("command", [["plan", "--to", "transformers"], ["schedule"]])
def test_a_saved_plan_that_cannot_be_is_wrong_input(recipe, tmp_path, command, ran):
    none = tmp_path / "none.json"
    ib.plan(ib.Recipe.load(recipe), 7).save(none)
    output = ran([command[0], str(none), *command[1:]], 2)
    assert "Cannot train on 7 GPUs as asked" in output.err and "What would work:" in output.err
    assert not output.out
