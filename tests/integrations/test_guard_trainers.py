"""The guard in trainers that own the loop."""

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the guard needs torch")


def plan(convention):
    recipe = ib.Recipe(
        effective_batch=48,
        lr=0.1,
        optimizer="sgd" if convention == "lightning" else "adamw",
        dataset_size=200,
        duration="2ep",
        warmup="3st",
        micro_batch=8,
        convention=convention,
    )
    return ib.plan(recipe, 2).to_json()


MISTAKES = {
    None: None,
    "another lr": "another learning rate",
    "another micro-batch": "another micro-batch",
    "another accumulation": "another accumulation",
}


@pytest.mark.parametrize("mistake", [*MISTAKES, "summed loss"])
def test_lightning(two, mistake):
    pytest.importorskip("lightning", reason="the callback is Lightning's")
    from ddp.trainers import lightning

    expected = {**MISTAKES, "summed loss": "summed loss (8×)"}[mistake]
    for error, unchecked in two(lightning, plan("lightning"), mistake):
        assert (error is None) == (expected is None), error
        assert expected is None or expected in error.cause
        assert unchecked == []


@pytest.mark.parametrize("mistake", [*MISTAKES, "drop_last"])
def test_transformers(two, mistake):
    pytest.importorskip("transformers", reason="the callback is transformers'")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    from ddp.trainers import transformers

    expected = {**MISTAKES, "drop_last": "drop_last is set where the plan pads"}[mistake]
    for error, unchecked in two(transformers, plan("transformers"), mistake):
        assert (error is None) == (expected is None), error
        assert expected is None or expected in error.cause
        assert unchecked == []
