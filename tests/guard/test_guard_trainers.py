"""The guard in trainers that own the loop: what may hide a mistake there, checkpoints, other conventions. The mistakes are in `faults.py`."""

import pytest

import isobatch as ib
from isobatch.guard import Cause

pytest.importorskip("torch", reason="the guard needs torch")


def plan(convention, ranks=2, *, dataset_size=200, **fields):
    recipe = ib.Recipe(
        effective_batch=24 * ranks,
        lr=0.1,
        optimizer="sgd" if convention == "lightning" else "adamw",
        dataset_size=dataset_size,
        duration="2ep",
        warmup="3st",
        micro_batch=8,
        convention=convention,
        **fields,
    )
    return ib.plan(recipe, ranks).to_json()


def looked_at(found, cause):
    for error, unchecked in found:
        assert unchecked == []
        if cause is None:
            assert error is None
        else:
            assert error is not None, "went through"
            cause, detail = cause if isinstance(cause, tuple) else (cause, "")
            assert error.cause is cause and detail in error.diagnosis


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


@pytest.mark.parametrize(("mistake", "cause"), [(None, None), ("summed loss", Cause.SUMMED_LOSS)])
def test_clipping(by_lightning, by_transformers, mistake, cause):
    for run, convention in (by_lightning, "lightning"), (by_transformers, "transformers"):
        looked_at(run(plan(convention, clip_norm=0.01), mistake), cause)


@pytest.mark.parametrize("at", [3, 5])
def test_a_checkpoint_of_lightning(by_lightning, tmp_path, at):
    path = str(tmp_path / "run.ckpt")
    looked_at(by_lightning(plan("lightning"), stop=at, resume=path), None)
    for error, unchecked in by_lightning(plan("lightning"), resume=path):
        assert error is None
        assert len(unchecked) == (at % 5 > 0)


@pytest.mark.parametrize("at", [3, 5])
def test_a_checkpoint_of_transformers(by_transformers, tmp_path, at):
    folder = str(tmp_path)
    looked_at(by_transformers(plan("transformers"), folder=folder, stop=at), None)
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


def test_labels_that_are_the_input_are_healthy_and_noted_once(by_transformers):
    for error, noted in by_transformers(plan("transformers"), tutorial=True):
        assert error is None
        (note,) = noted
        assert "the gradient is 0.875 × that of the mean loss" in note


@pytest.mark.parametrize("mistake", ["summed loss", "own tokens"])
def test_labels_that_are_the_input_hide_no_mistake(by_transformers, mistake):
    for error, _ in by_transformers(plan("transformers"), mistake, tutorial=True):
        assert error is None if mistake == "own tokens" else error.cause is Cause.SUMMED_LOSS
