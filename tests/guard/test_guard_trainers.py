"""The guard in trainers that own the loop: from a checkpoint, in another world or convention. Their faults are in `faults.py`."""

import pytest

import isobatch as ib
from isobatch.guard import Cause

pytest.importorskip("torch", reason="the guard needs torch")


def plan(convention, ranks=2):
    recipe = ib.Recipe(
        effective_batch=24 * ranks,
        lr=0.1,
        optimizer="sgd" if convention == "lightning" else "adamw",
        dataset_size=200,
        duration="2ep",
        warmup="3st",
        micro_batch=8,
        convention=convention,
    )
    return ib.plan(recipe, ranks).to_json()


@pytest.fixture
def by_lightning(two):
    pytest.importorskip("lightning", reason="the callback is Lightning's")
    from ddp.trainers import lightning

    return lambda *args, **kwargs: two(lightning, *args, **kwargs)


@pytest.fixture
def by_transformers(two):
    pytest.importorskip("transformers", reason="the callback is transformers'")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    from ddp.trainers import transformers

    return lambda *args, **kwargs: two(transformers, *args, **kwargs)


def test_another_world_size(by_lightning, by_transformers):
    for run, convention in (by_lightning, "lightning"), (by_transformers, "transformers"):
        assert {error.cause for error, _ in run(plan(convention, ranks=4))} == {Cause.ANOTHER_WORLD_SIZE}


@pytest.mark.parametrize("at", [3, 5])
def test_a_checkpoint_of_lightning(by_lightning, tmp_path, at):
    path = str(tmp_path / "run.ckpt")
    assert by_lightning(plan("lightning"), stop=at, resume=path) == [(None, [])] * 2
    for error, unchecked in by_lightning(plan("lightning"), resume=path):
        assert error is None
        assert len(unchecked) == (at % 5 > 0)


@pytest.mark.parametrize("at", [3, 5])
def test_a_checkpoint_of_transformers(by_transformers, tmp_path, at):
    folder = str(tmp_path)
    assert by_transformers(plan("transformers"), folder=folder, stop=at) == [(None, [])] * 2
    for error, unchecked in by_transformers(plan("transformers"), folder=folder, resume=True):
        assert error is None
        assert len(unchecked) == 2 * (at % 5 > 0)  # the epoch under way, and the gradient's size


@pytest.mark.parametrize(("convention", "tool"), [("torch", "transformers"), ("transformers", "lightning")])
def test_the_remedy_for_another_convention_is_known_at_the_start(
    by_lightning, by_transformers, convention, tool
):
    run = {"lightning": by_lightning, "transformers": by_transformers}[tool]
    for error, _ in run(plan(convention)):
        assert (error.cause, error.step) == (Cause.ANOTHER_CONVENTION, 0)
        assert f'convention="{tool}"' in error.diagnosis
