"""The settings: one list, and every place that derives from it."""

import argparse
import re
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import isobatch as ib
from isobatch import _core
from isobatch.cli.options import add_settings
from isobatch.planning import settings as home
from isobatch.planning.record import VALUES
from isobatch.recipes import recipe as recipes
from reference.profile import PROFILE
from reference.settings import CASES, RECIPE


def test_every_place_has_every_setting():
    core = [name for name, table, _ in _core.fields() if table == "settings"]
    parser = argparse.ArgumentParser()
    add_settings(parser)
    described = re.findall(r"^ {8}(\w+): ", ib.plan.__doc__, re.MULTILINE)
    for names in (described, [action.dest for action in parser._actions]):
        assert set(core) <= set(names)
    assert core == list(home.Settings._fields) == list(get_type_hints(home.Keywords)) == list(CASES)


def planned(case, settings):
    """The values of a plan, and those of the same row of a fleet; unknown is None in both."""
    keywords = {"profile": PROFILE if case.profile else None, **settings}
    cluster = ib.Cluster(gpus_per_node=case.gpus, price_per_gpu_hour=2.0)
    recipe = ib.Recipe(**{**RECIPE, **case.recipe})
    plan = ib.plan(recipe, cluster, **keywords)
    table = ib.plan_fleet([recipe], [cluster], **keywords)
    row = {name: column.tolist()[0] for name, column in table.items() if name in VALUES}
    known = {name: None if value in (-1, -1.0) or value != value else value for name, value in row.items()}
    return {name: getattr(plan, name) for name in known}, known | {"reasons": ib.Reason.of(row["reasons"])}


@pytest.mark.parametrize("name", CASES)
def test_each_setting_changes_a_plan_and_the_row_of_a_fleet(name):
    case = CASES[name]
    plan, row = planned(case, case.beside)
    assert plan == row
    changed, changed_row = planned(case, {**case.beside, name: case.value})
    assert changed == changed_row
    assert changed != plan, f"{name}={case.value!r} changes nothing: nothing in rust/core/src/plan/ heeds it"
    assert len(plan) > 20


@pytest.mark.parametrize("name", CASES)
def test_a_plan_says_that_its_learning_rate_stays_only_where_it_does(name):
    case = CASES[name]
    plan = ib.plan(ib.Recipe(**{**RECIPE, **case.recipe}), case.gpus, **{name: case.value})
    assert plan.lr == plan.recipe.lr or not re.search("Unchanged: .*learning rate", plan.explain())


def test_a_setting_that_moves_hyperparameters_alone_is_listed():
    """The probe and ElasticRun plan other splits of a run by these settings alone, so a forgotten one would
    be lost.
    """
    moves = ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "ema_decay")
    calls = set()
    for name, case in CASES.items():
        plan, changed = (planned(case, {**case.beside, **more})[0] for more in ({}, {name: case.value}))
        same_batch = plan["effective_batch"] == changed["effective_batch"]
        if same_batch and any(plan[column] != changed[column] for column in moves):
            calls.add(name)
    assert calls == {"rule", *home.HYPERPARAMETERS}, "HYPERPARAMETERS in planning/settings.py differs"


def test_the_types_of_keywords_are_those_of_the_settings():
    assert get_type_hints(home.Keywords) == get_type_hints(home.Settings)


def test_replan_takes_every_setting():
    run = ib.plan(ib.Recipe(effective_batch=256, lr=0.1, duration="100st", gpus=8), 8)
    for name, case in CASES.items():
        assert getattr(home.DEFAULTS, name) != case.value
        assert getattr(ib.replan(run, at_step=5, **{name: case.value}).settings, name) == case.value


def named(legal):
    return set(re.split(r", | or ", legal.partition(";")[0]))


@pytest.mark.parametrize(
    ("field", "file"),
    [
        ("policy", home),
        ("rule", home),
        ("ramp_rule", home),
        ("optimizer", recipes),
        ("decay", recipes),
        ("convention", recipes),
        ("precision", recipes),
    ],
)
def test_the_names_in_types_are_those_of_the_core(field, file):
    names = getattr(file, field.title().replace("_", ""))
    assert get_origin(names) is Literal
    (legal,) = [legal for name, _, legal in _core.fields() if name == field]
    listed = {name for name in named(legal) if " " not in name}
    differ = listed ^ set(get_args(names))
    assert not differ, f"{field.title()} in {file.__file__} and the core differ in {sorted(differ)}"


def test_a_keyword_that_is_none_is_named_with_the_nearest():
    recipe = ib.Recipe(effective_batch=256, lr=0.1)
    with pytest.raises(ib.InputError, match="unknown setting 'polizy': did you mean 'policy'"):
        ib.plan(recipe, 8, polizy="keep")
    with pytest.raises(ib.InputError, match="unknown setting 'scaling_rule': did you mean 'rule'"):
        ib.plan(recipe, 8, scaling_rule="sqrt")
    with pytest.raises(ib.InputError, match="unknown setting 'profil': did you mean 'profile'"):
        ib.replan(ib.plan(recipe, 8), at_step=3, profil=None)
    with pytest.raises(ib.InputError) as caught:
        ib.plan(recipe, 8, polizy="keep", rulee="sqrt")
    assert caught.value.fields == ("polizy", "rulee")


def test_several_bad_settings_are_said_at_once():
    with pytest.raises(ib.InputError) as caught:
        ib.plan(ib.Recipe(effective_batch=256, lr=0.1), 8, rule="lineer", max_batch=0)
    assert caught.value.fields == ("rule", "max_batch")
    assert "did you mean 'linear'" in str(caught.value)


def test_an_integer_policy_of_replan_is_effective_batch():
    run = ib.plan(ib.Recipe(effective_batch=256, lr=0.1, duration="100st"), 8)
    with pytest.raises(
        ib.InputError, match=r"policy must be a name, got 512: a batch to reach is effective_batch="
    ):
        ib.replan(run, at_step=5, policy=512)
    assert ib.replan(run, at_step=5, effective_batch=512).effective_batch == 512


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (0, "GPUs must be at least 1, got 0"),
        (-8, "GPUs must be at least 1, got -8"),
        (2**31 + 1, "GPUs must be at most 2,147,483,648, got 2147483649"),
        (2**63, "GPUs must be at most 2,147,483,648"),
        *(
            (illegal, f"cluster must be a Cluster or a number of GPUs, got {re.escape(str(illegal))}")
            for illegal in (7.5, float("nan"), None, [8])
        ),
        (np.array([8, 16]), "cluster must be a Cluster or a number of GPUs, got "),
        ("8", "cluster must be a Cluster or a number of GPUs, got "),
        (True, "cluster must be a Cluster or a number of GPUs, got True"),
    ],
)
def test_gpus_that_are_none(cluster, message):
    with pytest.raises(ib.InputError, match=message):
        ib.plan(ib.Recipe(effective_batch=256, lr=0.1), cluster)


def test_bad_recipes():
    with pytest.raises(
        ib.InputError, match=r"recipe must be a Recipe, got .*: Recipe\(\*\*fields\) makes one"
    ):
        ib.plan({"effective_batch": 256, "lr": 0.1}, 8)


@pytest.mark.parametrize("name", home.Settings._fields)
def test_a_default_that_is_given_is_that_of_the_core(name):
    keywords = {name: getattr(home.DEFAULTS, name)}
    assert home.settings_of(keywords) is not home.DEFAULTS
    recipe = ib.Recipe(**RECIPE)
    assert ib.plan(recipe, 6, **keywords).to_json() == ib.plan(recipe, 6).to_json()
