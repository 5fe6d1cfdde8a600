"""Laws of every recipe on every cluster."""

from math import isclose

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import isobatch as ib

COUNT = st.integers(1, 4096)
GPUS = st.integers(1, 2048)
CAP = st.none() | st.integers(1, 512)
RULE = st.sampled_from(["none", "linear", "sqrt", "power", "auto"])
OPTIMIZER = st.sampled_from(["sgd", "adam", "adamw", "rmsprop", "lars", "lamb", "lion", "muon", "adafactor"])


@st.composite
def recipes(draw):
    """A recipe as it was tuned on some GPUs."""
    return ib.Recipe.from_gpus(
        gpus=draw(st.integers(1, 64)),
        batch_per_gpu=draw(st.integers(1, 256)),
        accumulation=draw(st.integers(1, 16)),
        lr=draw(st.floats(1e-6, 10)),
        optimizer=draw(OPTIMIZER),
        power=draw(st.floats(0.2, 1.2)),
        weight_decay=draw(st.floats(0, 1)),
        decay=draw(st.sampled_from(["lr_multiplied", "independent"])),
        duration=f"{draw(st.integers(1, 10**6))}st",
        warmup=f"{draw(st.integers(0, 1000))}st",
        dataset_size=draw(st.none() | st.integers(10**6, 10**8)),
    )


def feasible(plan):
    assume(plan.status != "infeasible")
    return plan


@given(recipes(), GPUS, st.integers(1, 300), st.integers(1, 300))
def test_a_larger_cap_never_gives_a_smaller_micro_batch(recipe, gpus, cap, larger):
    low, high = sorted((cap, larger))
    small = feasible(ib.plan(recipe, gpus, policy="grow", max_micro_batch=low))
    large = ib.plan(recipe, gpus, policy="grow", max_micro_batch=high)
    assert small.micro_batch <= large.micro_batch
    assert small.accumulation >= large.accumulation
    assert (small.effective_batch, small.lr, small.total_steps) == (
        large.effective_batch,
        large.lr,
        large.total_steps,
    )


@given(COUNT, GPUS)
def test_the_nearest_counts_and_batches_work(batch, gpus):
    recipe = ib.Recipe(effective_batch=batch, lr=0.1)
    plan = ib.plan(recipe, gpus)
    assume(plan.status == "infeasible")
    below, above = plan.nearest_world_sizes
    for count in filter(None, (plan.nearest_world_size, below, above)):
        assert ib.plan(recipe, count).status != "infeasible"
    for near in filter(None, (plan.nearest_batch, *plan.nearest_batches)):
        assert ib.plan(ib.Recipe(effective_batch=near, lr=0.1), gpus).status != "infeasible"
    # and nothing nearer does
    works = [count for count in range(1, batch + 1) if batch % count == 0]
    assert plan.nearest_world_size == min(works, key=lambda count: (abs(count - gpus), count))
    assert below == max((count for count in works if count < gpus), default=None)
    assert above == min((count for count in works if count > gpus), default=None)
    assert plan.nearest_batches == (batch // gpus * gpus or None, batch // gpus * gpus + gpus)


@given(recipes(), st.integers(1, 256), RULE)
def test_growing_there_and_back_is_the_identity(recipe, gpus, rule):
    assume(recipe.dataset_size is None)
    grown = feasible(ib.plan(recipe, gpus, policy="grow", rule=rule))
    moved = ib.Recipe.from_gpus(
        gpus=gpus, batch_per_gpu=grown.micro_batch, accumulation=grown.accumulation, lr=grown.lr,
            optimizer=recipe.optimizer,
        power=recipe.power, weight_decay=grown.weight_decay, decay=recipe.decay,
    )  # fmt: skip
    back = ib.plan(moved, recipe.gpus, policy="grow", rule=rule)
    assert back.effective_batch == recipe.effective_batch
    assert isclose(back.lr, recipe.lr, rel_tol=1e-12)
    assert isclose(back.weight_decay, recipe.weight_decay, rel_tol=1e-12, abs_tol=1e-300)  # subnormal


@given(st.integers(1, 4000), st.integers(1, 64), CAP)
def test_ragged_plans_hold_the_batch_and_weigh_every_sample_alike(batch, gpus, cap):
    plan = ib.plan(ib.Recipe(effective_batch=batch, lr=0.1), gpus, split="ragged", max_micro_batch=cap)
    if batch < gpus:
        assert plan.status == "infeasible"
        return
    sizes = [plan.micro_batches(rank) for rank in range(gpus)]
    assert sum(int(rank.sum()) for rank in sizes) == plan.effective_batch == batch
    assert max(int(rank.max()) for rank in sizes) == plan.micro_batch <= (cap or batch)
    assert max(map(len, sizes)) == plan.accumulation
    shares = [int(rank.sum()) for rank in sizes]
    assert max(shares) - min(shares) <= 1
    for rank, counts in enumerate(sizes):
        # DDP divides by the replicas; each sample then weighs 1/batch.
        np.testing.assert_allclose(plan.loss_weights(rank) / counts / gpus, 1 / batch, rtol=1e-14)


@given(st.integers(1, 500), st.integers(1, 32), st.integers(1, 64))
def test_uneven_plans_give_the_first_replicas_one_more_micro_batch(passes, micro, gpus):
    batch = passes * micro
    plan = ib.plan(ib.Recipe(effective_batch=batch, lr=0.1), gpus, split="uneven", max_micro_batch=micro)
    assume(ib.Reason.UNEVEN in plan.reasons)
    sizes = [plan.micro_batches(rank) for rank in range(gpus)]
    assert sum(int(rank.sum()) for rank in sizes) == batch == plan.effective_batch
    assert {int(size) for rank in sizes for size in rank} == {plan.micro_batch}
    counts = [len(rank) for rank in sizes]
    assert counts == sorted(counts, reverse=True)
    assert 1 <= counts[-1] <= counts[0] == plan.accumulation <= counts[-1] + 1
    for rank, each in enumerate(sizes):
        np.testing.assert_allclose(plan.loss_weights(rank) / each / gpus, 1 / batch, rtol=1e-14)


def test_an_uneven_micro_batch_is_the_multiple_that_was_asked_for():
    recipe = ib.Recipe(effective_batch=120, lr=0.1)
    assert ib.plan(recipe, 7, split="uneven", micro_batch_multiple=8).micro_batch == 8
    stuck = ib.plan(recipe, 7, split="uneven", micro_batch_multiple=7)
    assert stuck.status == "infeasible"
    assert any(option.settings.micro_batch_multiple == 1 for option in stuck.options)


@given(recipes(), GPUS)
def test_plain_loss_weights_are_one_over_the_accumulation(recipe, gpus):
    plan = feasible(ib.plan(recipe, gpus, policy="grow"))
    np.testing.assert_allclose(
        plan.loss_weights(gpus - 1), np.full(plan.accumulation, 1 / plan.accumulation), rtol=1e-15
    )
