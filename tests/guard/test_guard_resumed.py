"""The guard in a resumed run: moved by `replan`, or from a checkpoint, in the middle of an epoch or not."""

import msgspec
import pytest

import isobatch as ib
from isobatch.guard import Cause, GuardError, guard

pytest.importorskip("torch", reason="the guard needs torch")

import torch
from torch.nn.functional import mse_loss

from guard.runs import run
from plan_of import loop_of

SMALL = {"lr": 0.1, "optimizer": "sgd", "dataset_size": 64, "duration": "3ep", "schedule": "constant"}
RUN = loop_of(duration="4ep", warmup="3st")
MOVES = {
    "fewer GPUs": ib.replan(ib.plan(RUN.recipe, 6, max_micro_batch=8), at_step=7, cluster=2),
    "a larger batch": ib.replan(RUN, at_step=7, effective_batch=96),
    "a larger batch, ragged": ib.replan(RUN, at_step=7, effective_batch=90, split="ragged"),
    "a larger batch, uneven": ib.replan(RUN, at_step=7, effective_batch=56, split="uneven"),
    "at an epoch's end": ib.replan(RUN, at_step=5, effective_batch=96),
    "twice": ib.replan(ib.replan(RUN, at_step=2, effective_batch=96), at_step=4, effective_batch=48),
}


@pytest.fixture
def going_on(two):
    """Outcomes of two ranks in a loop resumed at a step: with PlanLR and PlanSampler, or otherwise."""

    def outcomes(plan, at, resumed="plan", mistake="", kind=""):
        how = {"resumed": resumed, "at": at, "mistake": mistake, "kind": kind}
        return two(run, "loop", plan.to_json(), how)

    return outcomes


def healthy(outcomes):
    assert [(outcome.error, outcome.unchecked) for outcome in outcomes] == [(None, [])] * 2
    return True


@pytest.mark.parametrize("move", MOVES)
def test_a_moved_run_goes_through(going_on, move):
    plan = MOVES[move]
    assert plan.status != "infeasible" and plan.moves[-1].offset is not None
    assert healthy(going_on(plan, plan.moves[-1].step))


@pytest.mark.parametrize("at", [0, 3, 5, 7, 9])
def test_a_run_goes_on_from_a_checkpoint(going_on, at):
    assert healthy(going_on(RUN, at))


def test_a_moved_run_goes_on_from_a_later_checkpoint(going_on):
    plan = MOVES["a larger batch"]
    assert healthy(going_on(plan, plan.moves[-1].step + 2))


@pytest.mark.parametrize(
    ("mistake", "cause"),
    [
        ("data anew", Cause.ANOTHER_PLACE),
        ("schedule anew", Cause.ANOTHER_PLACE),
        ("own schedule", Cause.ANOTHER_LR),
        ("state anew", Cause.NEW_STATE),
    ],
)
def test_a_mistake_at_a_move_is_named(going_on, mistake, cause):
    for error, *_ in going_on(MOVES["a larger batch"], 7, mistake=mistake):
        assert error.cause is cause
        assert error.step in (0, 7)


@pytest.mark.parametrize("at", [3, 5, 7, 9])
def test_a_loop_may_pass_over_what_it_has_seen(going_on, at):
    for error, unchecked, _ in going_on(RUN, at, "by hand"):
        assert error is None
        assert unchecked == ([] if at % RUN.steps_per_epoch == 0 else [UNSEEN])


@pytest.mark.parametrize("at", [5, 7])
def test_the_order_of_the_first_epoch_again_is_named(going_on, at):
    for error, *_ in going_on(RUN, at, "by hand", "first order"):
        assert error.cause is Cause.MISSING_SET_EPOCH
        assert "resumes in epoch 1, but DistributedSampler gives the order of epoch 0" in error.text


def test_a_sampler_that_does_not_say_its_epoch_leaves_the_order_unchecked(going_on):
    for error, unchecked, _ in going_on(RUN, 5, "by hand", kind="by weights"):
        assert error is None
        assert unchecked == [
            "whether epoch 1 has a new order: WeightedRandomSampler does not say which order it gives"
        ]


UNSEEN = "the epoch under way at the start: its sampler does not say where it resumes"


def test_a_start_that_was_not_given_is_guessed(going_on):
    for error, *_ in going_on(RUN, 7, "by hand", "no start"):
        assert f"{Cause.RESUMED.text} (it is the plan's at step 7)" in error.diagnosis
        assert Cause.RESUMED.advice in error.advice


@pytest.mark.parametrize("at", [2, 7])
def test_a_loader_may_know_where_it_was(going_on, at):
    pytest.importorskip("torchdata", reason="the loader is torchdata's")
    plan = ib.plan(msgspec.structs.replace(RUN.recipe, dataset_size=192, duration="16st"), 2)
    assert healthy(going_on(plan, at, "stateful"))


def test_a_ramp_is_left_out_and_said_to_be(going_on):
    ramp = {"ramp": "16 16 160", "duration": "40st", "dataset_size": 4000}
    plan = ib.plan(msgspec.structs.replace(RUN.recipe, **ramp), 2)
    left_out = ["accumulation and micro-batches", "the gradient's size"]
    for error, unchecked, _ in going_on(plan, 0):
        assert error is None
        assert [text.split(":")[0] for text in unchecked] == left_out


@pytest.mark.parametrize("begun_again", [True, False])
def test_an_epoch_that_is_begun_again_is_named_at_its_first_step(begun_again):
    plan = ib.plan(ib.Recipe(**{**SMALL, "effective_batch": 8}), 1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    sampler = torch.utils.data.DistributedSampler(data, 1, 0)
    loader = torch.utils.data.DataLoader(data, 8, sampler=sampler)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler.set_epoch(1)
    watch = guard(plan, loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    watch.attach(model, optimizer, loader, start_step=12)  # the middle of epoch 1
    steps = 0
    try:
        for index, (x, y) in enumerate(loader):
            if begun_again or index >= 4:
                mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        error = None
    except GuardError as raised:
        error = raised
    if begun_again:
        assert (error.cause, error.step, steps) == (Cause.ANOTHER_PLACE, 12, 0)
    else:
        assert error is None and steps == 4
