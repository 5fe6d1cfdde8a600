"""The guard where gradients are sharded, where they are made inside of optimizer.step(), and where they are scaled."""

import msgspec
import pytest

import isobatch as ib
from isobatch.guard import Cause

pytest.importorskip("torch", reason="the guard needs torch")

from ddp.scaled import train as scaled
from ddp.sharded import flat_sharded, fully_sharded, with_closure
from guard.runs import NO_SHARDS, SHARDS_ON_A_CPU

sharded = pytest.mark.skipif(not SHARDS_ON_A_CPU, reason=NO_SHARDS)
RECIPE = ib.Recipe(
    effective_batch=48,
    lr=0.1,
    optimizer="sgd",
    dataset_size=200,
    duration="2ep",
    warmup="3st",
    micro_batch=8,
)
PLAN = ib.plan(RECIPE, 2).to_json()
MISTAKES = {
    "summed loss": (Cause.SUMMED_LOSS, "8×"),
    "no division": (Cause.NOT_DIVIDED, "3×"),
    "another lr": (Cause.ANOTHER_LR, ""),
    "clipped by shard": (Cause.CLIPPED_OTHERWISE, "each rank by the norm of its own part"),
}


def test_a_closure_is_looked_at_when_it_has_made_the_gradients(two):
    assert [error for error, _ in two(with_closure, PLAN)] == [None, None]


@pytest.mark.parametrize("mistake", ["summed loss", "no division", "another lr"])
def test_a_mistake_inside_a_closure_is_named(two, mistake):
    for error, _ in two(with_closure, PLAN, mistake):
        cause, detail = MISTAKES[mistake]
        assert error.cause is cause and detail in error.diagnosis


CLIPPED = ib.plan(msgspec.structs.replace(RECIPE, clip_norm=0.3), 2).to_json()
WRAPPERS = pytest.mark.parametrize(
    ("train", "how"), [(fully_sharded, {}), (flat_sharded, {}), (flat_sharded, {"use_orig_params": True})]
)


@sharded
@WRAPPERS
def test_sharded_gradients_go_through_and_it_is_said_what_nobody_saw(two, train, how):
    for plan in PLAN, CLIPPED:
        for error, unchecked in two(train, plan, **how):
            assert error is None
            assert unchecked[0].startswith("equal weights and gradients on all ranks")
            assert len(unchecked) == 1 + (plan == CLIPPED and "use_orig_params" in how)


@sharded
@WRAPPERS
@pytest.mark.parametrize("mistake", ["summed loss", "another lr", "clipped by shard"])
def test_a_sharded_mistake_is_named(two, train, how, mistake):
    cause, detail = MISTAKES[mistake]
    for error, _ in two(train, CLIPPED if "clipped" in mistake else PLAN, mistake, **how):
        assert error.cause is cause and detail in error.diagnosis
        assert error.step <= 1


@sharded
def test_a_fully_sharded_nan_is_noticed(two):
    for error, _ in two(fully_sharded, PLAN, "nan later"):
        assert (error.cause, error.step) == (Cause.NOT_FINITE, 4)  # of step 3
        assert "nobody saw on which rank" in error.text


HALVES = ib.plan(msgspec.structs.replace(RECIPE, precision="fp16", duration="20ep"), 2).to_json()


@pytest.mark.parametrize(
    "how", [{}, {"overflows": 3}, {"overflows": 3, "every": False}, {"overflows": 3, "fused": True}]
)
def test_steps_that_a_loss_scaler_skips_are_none(two, how):
    assert two(scaled, HALVES, **how) == [(None, 9)] * 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_nan_that_a_loss_scaler_skips_forever_is_named(two, fused):
    for error, _ in two(scaled, HALVES, "nan", fused=fused):
        assert (error.cause, error.ranks) == (Cause.NAN_ON_A_RANK, (1,))


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_gradient_is_looked_at(two, fused):
    assert two(scaled, HALVES, fused=fused, loss_given=True, overflows=1) == [(None, 9)] * 2
    for error, _ in two(scaled, HALVES, "summed loss", fused=fused, loss_given=True):
        assert error.cause is Cause.SUMMED_LOSS


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_gradient_may_be_clipped(two, fused):
    clipped = ib.plan(
        msgspec.structs.replace(RECIPE, precision="fp16", duration="20ep", clip_norm=0.01), 2
    ).to_json()
    assert two(scaled, clipped, loss_given=True, fused=fused) == [(None, 9)] * 2
    for error, _ in two(scaled, clipped, "no unscale", loss_given=True, fused=fused):
        assert error.cause is Cause.CLIPPED_OTHERWISE
        assert "before scaler.unscale_(optimizer)" in error.diagnosis


@sharded
def test_fully_sharded_that_never_synchronizes_is_named(two):
    for error, _ in two(fully_sharded, PLAN, "never synchronized"):
        assert (error.cause, error.step) == (Cause.NEVER_AVERAGED, 0)
        assert "set_requires_gradient_sync" in error.advice
