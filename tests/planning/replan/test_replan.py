"""Moved runs, against runs counted step by step."""

import itertools
import time
from fractions import Fraction
from math import ceil

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import isobatch as ib
from allocation import pools
from plan_of import EPOCHS, plan_of, recipe_of

RECIPE = recipe_of(**EPOCHS, min_lr=0.001)


def run_of(recipe=RECIPE, gpus=8, **settings):
    return ib.plan(recipe, gpus, **settings)


def test_other_gpus_change_nothing_but_the_layout():
    run = run_of()
    moved = ib.replan(run, at_step=57, cluster=16)
    assert moved.schedule == run.schedule
    assert (moved.total_steps, moved.warmup_steps) == (run.total_steps, run.warmup_steps)
    assert (moved.world_size, moved.micro_batch) == (16, 16)
    move = moved.moves[0]
    assert (move.step, move.samples, move.epoch, move.offset) == (57, 57 * 256, 2, 17 * 256)
    assert (move.repeated_samples, move.skipped_samples, move.velocity_factor) == (0, 0, 1.0)
    assert move.before == run


def test_another_batch_moves_the_lr_by_exactly_the_rule():
    run = run_of(rule="sqrt")
    moved = ib.replan(run, at_step=50, effective_batch=1024)
    assert moved.lr_at(49) == run.lr_at(49)
    assert moved.lr_at(50) == pytest.approx(2 * run.lr_at(50), rel=1e-15)
    # The third epoch's last step is half as large.
    assert [moved.lr_at(x) for x in (51, 52, 53, 54)] == pytest.approx(
        [2 * run.lr_at(x) for x in (54, 58, 60, 64)]
    )
    assert moved.moves[0].velocity_factor == 2
    assert moved.total_steps == 50 + 3 + 7 * 5  # the third epoch ends with a smaller step
    assert moved.lr_at(moved.total_steps) == pytest.approx(2 * 0.001)


def test_a_warmup_under_way_goes_on():
    run = run_of()
    moved = ib.replan(run, at_step=8, effective_batch=512)
    assert moved.warmup_steps == 8 + 6
    assert [moved.lr_at(x) for x in (8, 9, 14)] == pytest.approx([0.08, 0.1, 0.2])
    back = ib.replan(moved, at_step=11, effective_batch=256)
    assert back.warmup_steps == 11 + 6
    assert [back.lr_at(11 + x) for x in range(50)] == pytest.approx([run.lr_at(14 + x) for x in range(50)])


def test_under_grow_the_batch_follows_the_gpus():
    recipe = ib.Recipe.from_gpus(
        gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", duration="1000st", warmup="100st"
    )
    run = run_of(recipe, policy="grow")
    moved = ib.replan(run, at_step=200, cluster=32)
    assert (moved.effective_batch, moved.lr, moved.total_steps) == (1024, 0.4, 400)
    assert moved.lr_at(200) == pytest.approx(4 * run.lr_at(200))
    back = ib.replan(moved, at_step=300, cluster=8)
    assert back.total_steps == 300 + 400
    assert [back.lr_at(300 + x) for x in range(401)] == pytest.approx(
        [run.lr_at(600 + x) for x in range(401)], rel=1e-13
    )


def test_there_and_back_is_the_identity():
    run = run_of()
    for at, expected in (
        (31, {"cluster": 64}),
        (31, {"effective_batch": 512}),
        (31, {"cluster": 7, "split": "uneven"}),
    ):
        back = ib.replan(ib.replan(run, at_step=at, **expected), at_step=at, **back_of(expected))
        assert goes_on_as(back, run, at)
        once = ib.replan(run, at_step=20, effective_batch=128)
        twice = ib.replan(ib.replan(once, at_step=at, **expected), at_step=at, **back_of(expected, batch=128))
        assert goes_on_as(twice, once, at)
    assert ib.replan(run, at_step=0, cluster=16) == run_of(gpus=16)


def goes_on_as(again, run, at):
    """Whether the plan is the run's, and starts at a step: its data too."""
    assert msgspec.structs.replace(again, moves=run.moves) == run
    assert again.schedule == run.schedule
    assert [again.position(step) for step in range(120)] == [run.position(step) for step in range(120)]
    move = again.moves[-1]
    assert again.moves[:-1] == run.moves
    assert (move.repeated_samples, move.skipped_samples, move.velocity_factor) == (0, 0, 1.0)
    return (move.step, move.epoch, move.offset) == (at, *run.position(at)[2:])


def test_a_restart_on_the_same_gpus_goes_on_where_it_was():
    run = run_of()
    again = ib.replan(run, at_step=31, cluster=8)
    assert goes_on_as(again, run, 31)
    # Any number of them is one line of the file, not one each.
    for step in range(32, 60):
        again = ib.replan(again, at_step=step, cluster=8)
        assert goes_on_as(again, run, step)
    fewer = ib.replan(again, at_step=80, cluster=4)
    assert [move.step for move in fewer.moves] == [80]
    assert fewer == ib.replan(run, at_step=80, cluster=4)


@pytest.mark.parametrize(("dataset", "gpus"), [(5120, 4), (5121, 4), (5121, 2)])
def test_a_run_of_any_length_moves_at_once(dataset, gpus):
    recipe = msgspec.structs.replace(RECIPE, dataset_size=dataset, duration="1e12ep", warmup="1e9ep")
    start = time.process_time()
    run = run_of(recipe)
    moved = ib.replan(run, at_step=31, cluster=gpus)
    end = run.total_steps
    for step in (0, 31, 500, end // 3, end - 1, end):
        assert moved.lr_at(step) == pytest.approx(run.lr_at(step), rel=1e-9, abs=1e-15)
    assert time.process_time() - start < 2


def test_a_move_that_drops_the_rest_of_the_last_epoch_adds_no_step():
    run = plan_of(2, effective_batch=32, dataset_size=197, duration="1ep", drop_last=True)
    moved = ib.replan(run, at_step=5, effective_batch=128)
    assert (run.total_steps, moved.total_steps) == (6, 5)
    assert moved.position(5) == (5, 197, 1, 0)
    assert (moved.moves[-1].samples, moved.moves[-1].epoch) == (197, 1)


@settings(max_examples=200, deadline=None)
@given(
    batch=st.sampled_from([8, 16, 32]),
    dataset=st.integers(64, 400),
    epochs=st.integers(1, 3),
    to=st.sampled_from([4, 32, 64]),
    at=st.integers(1, 200),
)
def test_no_move_steps_beyond_the_run(batch, dataset, epochs, to, at):
    run = plan_of(2, effective_batch=batch, dataset_size=dataset, duration=f"{epochs}ep", drop_last=True)
    assume(at < run.total_steps)
    moved = ib.replan(run, at_step=at, effective_batch=to)
    assert moved.position(moved.total_steps).epoch <= epochs
    if moved.total_steps > at:
        assert moved.position(moved.total_steps - 1).epoch < epochs
    assert moved.moves[-1].samples == moved.position(at).samples


def back_of(middle, batch=256):
    return {name: {"cluster": 8, "effective_batch": batch, "split": "even"}[name] for name in middle}


def test_adascale_counts_its_gain():
    run = plan_of(8, optimizer="sgd", duration="1000st", sigma_sq=3.0, mu_sq=1.0, schedule="linear")
    moved = ib.replan(run, at_step=100, effective_batch=1024, rule="adascale")
    gain = (3 + 1) / (3 / 4 + 1)
    assert moved.total_steps == 100 + ceil(900 / gain)
    assert moved.lr_at(101) == pytest.approx(gain * 0.1 * (1 - (100 + gain) / 1000))


def test_a_run_without_a_length_still_has_a_place_in_the_data():
    run = plan_of(8, effective_batch=64, dataset_size=1000)
    move = ib.replan(run, at_step=20, cluster=4).moves[0]
    assert (move.samples, move.epoch, move.offset) == (1280, 1, 256)


def test_without_a_dataset_there_is_no_place():
    run = plan_of(8, effective_batch=64, duration="1e5sp")
    move = ib.replan(run, at_step=20, cluster=4).moves[0]
    assert (move.samples, move.epoch, move.offset) == (1280, None, None)


def test_a_rest_too_small_for_a_step_is_dropped_and_said():
    fields = {"effective_batch": 100, "dataset_size": 1000, "duration": "5ep", "drop_last": True}
    run = plan_of(4, **fields, max_micro_batch=5)
    moved = ib.replan(run, at_step=9, effective_batch=400, max_micro_batch=100)
    move = moved.moves[0]
    assert (move.epoch, move.offset, move.skipped_samples, move.repeated_samples) == (1, 0, 100, 0)
    assert moved.lr_at(9) == pytest.approx(run.lr_at(9) * 2)
    assert "100 samples of that epoch are dropped" in moved.explain()


def test_a_run_that_a_move_has_ended_moves_no_more():
    run = plan_of(8, effective_batch=48, convention="megatron", duration="54321sp")
    moved = ib.replan(run, at_step=1125, effective_batch=512)
    assert moved.total_steps == 1125
    with pytest.raises(ib.InputError, match="ends at step 1,125, the step of its last move"):
        ib.replan(moved, at_step=1125, cluster=4)


def test_a_layout_that_pads_more_says_so():
    run = plan_of(4, effective_batch=60, dataset_size=1000, duration="5ep")
    moved = ib.replan(run, at_step=1, cluster=3)
    rest = 1000 - 60
    assert moved.moves[0].repeated_samples == -rest % 3 - -rest % 4


def test_a_restart_as_it_was_changes_nothing_where_the_last_step_of_an_epoch_is_served():
    # On 2 replicas the rest of an epoch that 8 drop is served: one step more, at a slower pace of the
    # schedule.
    fields = EPOCHS | {"effective_batch": 48, "duration": "4ep", "drop_last": True, "warmup": None}
    moved = ib.replan(plan_of(8, **fields, max_micro_batch=8), at_step=370, cluster=2)
    again = ib.replan(moved, at_step=372, cluster=2)
    assert (moved.total_steps, len(again.moves)) == (425, 2)
    assert again.schedule == moved.schedule
    assert [again.position(step) for step in range(426)] == [moved.position(step) for step in range(426)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_step": 5}, "nothing changes"),
        ({"at_step": 200, "cluster": 4}, "a whole number from 0, up to 199"),
        ({"at_step": -1, "cluster": 4}, "at_step"),
        ({"at_step": 1.5, "cluster": 4}, "at_step"),
        ({"at_step": True, "cluster": 4}, "at_step"),
        ({"at_step": 5, "effective_batch": 512, "policy": "keep"}, "give one of the two"),
        ({"at_step": 5, "effective_batch": 0}, "policy"),
    ],
)
def test_wrong_use(changes, message):
    with pytest.raises(ib.InputError, match=message):
        ib.replan(run_of(), **changes)


def test_hours_go_on_by_the_running_plans_profile():
    speed = pools.profile()
    run = run_of(profile=speed)
    moved = ib.replan(ib.replan(run, at_step=57, cluster=16), at_step=90, cluster=4)
    again = ib.replan(
        ib.replan(run, at_step=57, cluster=16, profile=speed), at_step=90, cluster=4, profile=speed
    )
    assert moved.hours == again.hours > run.hours
    assert moved == again


def test_a_run_cannot_move_before_its_last_move():
    moved = ib.replan(run_of(), at_step=50, cluster=4)
    with pytest.raises(ib.InputError, match=r"50 \(the last move\) or later"):
        ib.replan(moved, at_step=49, cluster=2)


def test_an_impossible_move_is_a_plan_that_says_so():
    nowhere = ib.replan(run_of(), at_step=5, cluster=7)
    assert nowhere.status == "infeasible"
    with pytest.raises(ib.InputError, match="Cannot train on 7 GPUs as asked"):
        ib.replan(nowhere, at_step=6, cluster=8)


LEGS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 3, 4]), st.integers(1, 12)), max_size=4)


def followed(run, moves):
    """The run moved along `legs` (steps, GPUs, batch of 12s), and the plans it had on the way."""
    plans, step = [(0, run)], 0
    for steps, gpus, twelfths in moves:
        step += steps
        if step >= run.total_steps or step == 0:
            continue
        moved = ib.replan(run, at_step=step, cluster=gpus, effective_batch=12 * twelfths)
        assume(moved.status != "infeasible")
        run = moved
        plans.append((step, run))
    return run, plans


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(150, 1500), st.sampled_from(["sp", "st"]), LEGS)
def test_progress_in_samples(twelfths, length, unit, moves):
    length = length if unit == "sp" else length // (12 * twelfths) + 2
    recipe = ib.Recipe(
        effective_batch=12 * twelfths, lr=1.0, optimizer="sgd", duration=f"{length}{unit}", schedule="linear"
    )
    run, plans = followed(run_of(recipe, 1), moves)
    samples = length * (12 * twelfths if unit == "st" else 1)
    batches = {step: plan.effective_batch for step, plan in plans}
    consumed, step, batch, first = 0, 0, 0, ceil(samples / (12 * twelfths))
    while consumed < samples:
        batch = batches.get(step, batch)
        factor = batch / (12 * twelfths)
        passed = Fraction(consumed, 12 * twelfths * first)
        assert run.lr_at(step) == pytest.approx(factor * float(1 - passed), rel=1e-9, abs=1e-12)
        assert run.position(step).samples == consumed
        assert run.course.step_at(Fraction(consumed)) == step
        consumed, step = consumed + batch, step + 1
    assert run.total_steps == step
    for (_, before), (at, after) in itertools.pairwise(plans):
        assert [before.lr_at(x) for x in range(at)] == pytest.approx(
            [after.lr_at(x) for x in range(at)], rel=1e-12
        )
    assert ib.Plan.from_json(run.to_json()) == run


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(150, 700),
    st.sampled_from(["2", "3", "3.5", "0.75"]),
    LEGS,
    st.sampled_from([False, True]),
)
def test_progress_in_epochs(twelfths, dataset, epochs, moves, drop):
    recipe = ib.Recipe(
        effective_batch=12 * twelfths, lr=1.0, optimizer="sgd", duration=f"{epochs}ep", schedule="linear",
        dataset_size=dataset, drop_last=drop,
    )  # fmt: skip
    run, plans = followed(run_of(recipe, 1), moves)
    first, end = plans[0][1].steps_per_epoch, Fraction(epochs) * plans[0][1].steps_per_epoch
    factors = {step: plan.lr for step, plan in plans}
    factor, clock = 1.0, Fraction(0)
    for step in range(run.total_steps):
        before, factor = clock, factors.get(step, factor)
        clock = (1 - Fraction(run.lr_at(step) / factor)) * plans[0][1].total_steps
        place = run.position(step)
        assert clock >= before - Fraction(1, 10**9)
        if step not in factors and place.offset == 0:
            assert float(clock) == pytest.approx(place.epoch * first)  # an epoch's start is an epoch's start
        assert float(clock) < end + Fraction(1, 10**9)
        assert run.course.step_at(run.course.samples_at(Fraction(step))) == step
    if run.total_steps > run.course.legs[-1].step:
        assert float(run.course.legs[-1].clock_at(Fraction(run.total_steps))) >= float(end) - 1e-9
    else:  # the last move dropped what was left of the last epoch
        assert run.position(run.total_steps).epoch >= Fraction(epochs)
    for (_, before), (at, after) in itertools.pairwise(plans):
        assert before.lr_at(at) * (after.lr / before.lr) == pytest.approx(
            after.lr_at(at), rel=1e-12, abs=1e-15
        )
        assert [before.lr_at(x) for x in range(at)] == pytest.approx(
            [after.lr_at(x) for x in range(at)], rel=1e-12
        )


def test_a_bad_plan_is_refused_by_name():
    with pytest.raises(ib.InputError, match=r"plan must be a Plan, got 'plan.json': Plan\.load reads one"):
        ib.replan("plan.json", at_step=50, cluster=2)
