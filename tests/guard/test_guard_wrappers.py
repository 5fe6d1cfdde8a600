"""The guard where gradients are sharded, where they are made inside of optimizer.step(), and where they are
scaled.
"""

import pytest

from isobatch.guard import Cause

pytest.importorskip("torch", reason="the guard needs torch")

from guard.runs import NO_SHARDS, SHARDS_ON_A_CPU, run
from plan_of import loop_of

sharded = pytest.mark.skipif(not SHARDS_ON_A_CPU, reason=NO_SHARDS)
MISTAKES = {
    "summed loss": (Cause.SUMMED_LOSS, "8×"),
    "another lr": (Cause.ANOTHER_LR, ""),
    "clipped by shard": (Cause.CLIPPED_OTHERWISE, "each rank by the norm of its own part"),
}


@pytest.fixture
def train(two):
    """Outcomes of two ranks in a loop of `scripts/loop.py`, with a fault or none, by other `fields`."""

    def outcomes(fields=None, fault=None, **how):
        plan = loop_of(**{"duration": "2ep", "warmup": "3st", **(fields or {})})
        return two(run, "loop", plan.to_json(), how, fault)

    return outcomes


def healthy(outcomes):
    assert [outcome.error for outcome in outcomes] == [None, None]
    return True


def test_a_closure_is_looked_at_when_it_has_made_the_gradients(train):
    assert healthy(train(kind="closure", dropout=0.3))
    for error, *_ in train(fault="no division", kind="closure", dropout=0.3):
        assert error.cause is Cause.NOT_DIVIDED and "3×" in error.diagnosis


CLIPPED = {"clip_norm": 0.3}
WRAPPERS = pytest.mark.parametrize("wrapper", ["fsdp2", "fsdp", "fsdp of parameters"])


@sharded
@WRAPPERS
def test_sharded_gradients_go_through_and_it_is_said_what_nobody_saw(train, wrapper):
    for fields in {}, CLIPPED:
        for error, unchecked, _ in train(fields, wrapper=wrapper, dropout=0.3):
            assert error is None
            assert unchecked[0].startswith("equal weights and gradients on all ranks")
            assert len(unchecked) == 1 + (fields is CLIPPED and "of parameters" in wrapper)


@sharded
@WRAPPERS
@pytest.mark.parametrize("mistake", ["summed loss", "another lr", "clipped by shard"])
def test_a_sharded_mistake_is_named(train, wrapper, mistake):
    cause, detail = MISTAKES[mistake]
    how = ({}, mistake) if "clipped" not in mistake else (CLIPPED, None)
    for error, *_ in train(*how, wrapper=wrapper, dropout=0.3, mistake=mistake):
        assert error.cause is cause and detail in error.diagnosis
        assert error.step <= 1


@sharded
def test_a_fully_sharded_nan_is_noticed(train):
    for error, *_ in train({}, "nan later", wrapper="fsdp2"):
        assert (error.cause, error.step) == (Cause.NOT_FINITE, 4)  # of step 3
        assert "so the rank where it began is unknown" in error.text


HALVES = {"precision": "fp16", "duration": "20ep"}
SCALED = {"steps": 9, "overflows": 0, "loss": False}


@pytest.mark.parametrize(
    "how", [{}, {"overflows": 3}, {"overflows": 3, "every": False}, {"overflows": 3, "fused": True}]
)
def test_steps_that_a_loss_scaler_skips_are_none(train, how):
    assert healthy(train(HALVES, **SCALED | how))


@pytest.mark.parametrize("fused", [False, True])
def test_a_nan_that_a_loss_scaler_skips_forever_is_named(train, fused):
    for error, *_ in train(HALVES, **SCALED, fused=fused, mistake="nan"):
        assert (error.cause, error.ranks) == (Cause.NAN_ON_A_RANK, (1,))


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_gradient_is_looked_at(train, fused):
    scaled = {**SCALED, "loss": True, "fused": fused}
    assert healthy(train(HALVES, **scaled | {"overflows": 1}))
    for error, *_ in train(HALVES, "summed loss", **scaled):
        assert error.cause is Cause.SUMMED_LOSS


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_gradient_may_be_clipped(train, fused):
    scaled, clipped = {**SCALED, "loss": True, "fused": fused}, {**HALVES, "clip_norm": 0.01}
    assert healthy(train(clipped, **scaled))
    for error, *_ in train(clipped, **scaled, mistake="no unscale"):
        assert error.cause is Cause.CLIPPED_OTHERWISE
        assert "before scaler.unscale_(optimizer)" in error.diagnosis


@sharded
def test_fully_sharded_that_never_synchronizes_is_named(train):
    for error, *_ in train(wrapper="fsdp2", dropout=0.3, mistake="never synchronized"):
        assert (error.cause, error.step) == (Cause.NEVER_AVERAGED, 0)
        assert "set_requires_gradient_sync" in error.advice
