"""The explanation of a plan in parts: what pages show is chosen by topic, reason and verdict."""

import pytest

import isobatch as ib
from isobatch.planning.explain import Topic

RECIPE = ib.Recipe(effective_batch=256, lr=0.1, optimizer="sgd", dataset_size=5000, duration="3ep")
SPEED = ib.Profile.estimate(parameters=1e8, flops_per_sample=1e12, gpu_tflops=300, intra_gb_s=400)


@pytest.mark.parametrize("recipe", [RECIPE, ib.Recipe(effective_batch=256, lr=0.1, ramp="64 64 9000")])
@pytest.mark.parametrize("gpus", [7, 8, 64])
def test_the_parts_are_the_text(recipe, gpus):
    for settings in ({}, {"policy": "grow", "max_micro_batch": 8}, {"split": "ragged"}):
        plan = ib.plan(recipe, gpus, **settings)
        lines = plan.explain().splitlines()
        parts = plan.explanation()
        assert lines[0] == parts.headline
        is_infeasible = plan.status == "infeasible"
        assert bool(parts.reasons) == is_infeasible and bool(parts.sentences) != is_infeasible
        assert [reason for reason, _ in parts.reasons + parts.cautions] == [
            reason
            for severity in ("infeasible", "caution")
            for reason in plan.reasons
            if reason.severity == severity
        ]
        points = [why for _, why in parts.reasons + parts.cautions]
        assert [line.removeprefix("  - ") for line in lines if line.startswith("  - ")] == points


def test_a_limit_has_its_verdict():
    plan = ib.plan(RECIPE, 8, profile=SPEED, deadline_hours=1000.0)
    verdicts = [(topic, verdict) for topic, _, verdict in plan.explanation().sentences if verdict]
    assert verdicts == [(Topic.LIMIT, "met")]


def test_each_other_topic_has_one_place():
    topics = [topic for topic, *_ in ib.plan(RECIPE, 16, policy=512, profile=SPEED).explanation().sentences]
    assert list(dict.fromkeys(topics)) == [
        Topic.SPLIT,
        Topic.CAP,
        Topic.CHANGE,
        Topic.OTHER_CHANGES,
        Topic.EPOCH,
        Topic.RUN,
        Topic.OUTLOOK,
    ]


def test_the_ways_out_may_be_chosen():
    plan = ib.plan(RECIPE, 7)
    even = [option for option in plan.options if not option.layout.irregular]
    assert 0 < len(even) < len(plan.options)
    assert len(plan.explanation(options=even).menu) == 1 + len(even)


def test_names_of_settings_are_the_same_settings_as_values():
    """A policy and a rule by name have their settings made once; a batch, and 1 for True, have not."""
    for keywords in (
        {"rule": "sqrt"},
        {"rule": "sqrt", "policy": "grow"},
        {"policy": "grow", "rule": "sqrt"},
    ):
        settings = ib.plan(RECIPE, 16, **keywords).settings
        assert settings == ib.Settings(**keywords) and type(settings.policy) is str
    assert ib.plan(RECIPE, 16, policy=512, rule="sqrt").settings.policy == 512
    with pytest.raises(ib.InputError, match="policy must be keep"):
        ib.plan(RECIPE, 16, policy=["grow"])


def test_an_illegal_value_is_known_without_its_sentence():
    with pytest.raises(ib.InputError) as caught:
        ib.Recipe(effective_batch=256, lr=-1.0)
    assert caught.value.is_illegal_value and caught.value.at(file="a.toml").without_file().is_illegal_value
    assert not ib.InputError("lr must be given", field="lr").is_illegal_value
