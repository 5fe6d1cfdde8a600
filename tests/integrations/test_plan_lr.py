import copy
import gc
import io

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="PlanLR is a torch scheduler")
from isobatch.integrations.torch import PlanLR  # noqa: E402

RECIPE = ib.Recipe(effective_batch=256, lr=0.1, optimizer="sgd", duration="100st", warmup="10st")


def optimizer_of(default=1.0, kind=torch.optim.SGD, **second):
    layer = torch.nn.Linear(2, 2)
    return kind([{"params": [layer.weight]}, {"params": [layer.bias], **second}], lr=default)


def run(optimizer, scheduler, steps):
    rates = []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return rates


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_every_step_has_the_plans_value_times_the_groups_multiplier(kind):
    plan, optimizer = ib.plan(RECIPE, 8), optimizer_of(kind=kind, lr_multiplier=0.5)
    scheduler = PlanLR(optimizer, plan)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    assert run(optimizer, scheduler, 110) == [[plan.lr_at(x), plan.lr_at(x) * 0.5] for x in range(110)]
    assert scheduler.last_epoch == 110
    assert scheduler.base_lrs == [0.1, 0.05]


def test_a_groups_own_lr_is_its_multiplier_and_survives_a_reload():
    optimizer = optimizer_of(0.4, lr=0.1)
    scheduler = PlanLR(optimizer, ib.plan(RECIPE, 8))
    run(optimizer, scheduler, 10)
    assert scheduler.get_last_lr() == [0.1, 0.025]
    again = optimizer_of(0.4)
    again.load_state_dict(through_a_file(optimizer.state_dict()))  # before the scheduler is built
    assert PlanLR(again, ib.plan(RECIPE, 8))._multipliers == [1.0, 0.25]


def test_a_tensor_learning_rate_stays_the_same_tensor():
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=torch.tensor(1.0), capturable=False, foreach=False)
    rate = optimizer.param_groups[0]["lr"]
    run(optimizer, PlanLR(optimizer, ib.plan(RECIPE, 8)), 5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("recipe", "gpus", "settings", "steps"),
    [
        (RECIPE, 16, {}, 20),  # other GPUs
        (RECIPE, 16, {"policy": 512, "rule": "linear"}, 10),  # another batch
        (RECIPE, 8, {"policy": 192}, 20 * 256 / 192),  # one that does not divide the progress
        (ib.Recipe(effective_batch=256, lr=0.1, optimizer="sgd", duration="300st", warmup="10st"), 8, {}, 20),
    ],
)
@pytest.mark.parametrize("optimizer_last", [False, True])
def test_progress_survives_another_plan(recipe, gpus, settings, steps, optimizer_last):
    optimizer = optimizer_of()
    scheduler = PlanLR(optimizer, ib.plan(RECIPE, 8))
    run(optimizer, scheduler, 20)
    states = [(1, optimizer.state_dict()), (2, scheduler.state_dict())]
    plan, resumed = ib.plan(recipe, gpus, **settings), optimizer_of()
    successor = PlanLR(resumed, plan)
    for owner, state in states if not optimizer_last else reversed(states):
        (resumed if owner == 1 else successor).load_state_dict(through_a_file(state))
    assert [group["lr"] for group in resumed.param_groups] == [plan.lr_at(steps)] * 2
    assert successor.state_dict()["samples"] == 20 * 256
    assert run(resumed, successor, 3) == [[plan.lr_at(steps + x)] * 2 for x in range(3)]


def test_progress_in_epochs_survives_a_batch_that_divides_no_epoch():
    recipe = ib.Recipe(effective_batch=64, lr=0.1, optimizer="sgd", dataset_size=1000, duration="10ep")
    optimizer = optimizer_of()
    scheduler = PlanLR(optimizer, ib.plan(recipe, 8))
    run(optimizer, scheduler, 3 * 16)
    larger = ib.plan(recipe, 8, policy=200)
    successor = PlanLR(optimizer_of(), larger)
    successor.load_state_dict(scheduler.state_dict())
    assert (scheduler.state_dict()["samples"], successor.last_epoch) == (3000, 3 * larger.steps_per_epoch)


@pytest.mark.parametrize("calls", [2, 8])
def test_stepping_per_process_or_per_micro_batch_is_loud(calls):
    optimizer = optimizer_of()
    scheduler = PlanLR(optimizer, ib.plan(RECIPE, 8))
    optimizer.step()
    scheduler.step()
    for _ in range(calls - 1):
        with pytest.raises(ib.InputError, match=r"not for every micro-batch, nor for every process"):
            scheduler.step()
    assert scheduler.last_epoch == 1


def test_stepping_before_the_optimizer_or_once_an_epoch_is_loud():
    optimizer = optimizer_of()
    scheduler = PlanLR(optimizer, ib.plan(RECIPE, 8))
    with pytest.raises(ib.InputError, match=r"the optimizer was not"):
        scheduler.step()
    optimizer.step()
    optimizer.step()
    with pytest.raises(ib.InputError, match=r"took 2 steps since .* not once an epoch"):
        scheduler.step()
    with pytest.raises(ib.InputError, match="counts optimizer steps itself"):
        scheduler.step(3)


def test_bad_plans_have_no_schedule():
    with pytest.raises(ib.InputError, match="run's length"):
        PlanLR(optimizer_of(), ib.plan(ib.Recipe(effective_batch=256, lr=0.1), 8))
    with pytest.raises(ib.InputError, match="infeasible"):
        PlanLR(optimizer_of(), ib.plan(RECIPE, 7))
    with pytest.raises(ib.InputError, match="default lr is 0"):
        PlanLR(optimizer_of(0.0), ib.plan(RECIPE, 8))
    with pytest.raises(ib.InputError, match="not the state of a PlanLR"):
        PlanLR(optimizer_of(), ib.plan(RECIPE, 8)).load_state_dict({"last_epoch": 3})


def test_a_scheduler_that_was_replaced_is_gone():
    optimizer = optimizer_of()
    first = PlanLR(optimizer, ib.plan(RECIPE, 8))
    run(optimizer, first, 3)
    second = PlanLR(optimizer, ib.plan(RECIPE, 8, policy=512, rule="linear"))
    second.load_state_dict(first.state_dict())
    del first
    gc.collect()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.param_groups[0]["lr"] == second.get_last_lr()[0]
    run(optimizer, second, 3)


def test_it_is_the_learning_rate_that_the_weights_get():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    plan = ib.plan(RECIPE, 8)
    scheduler = PlanLR(optimizer, plan)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        scheduler.step()
    assert -weight.item() == pytest.approx(plan.schedule.values(range(100)).sum(), rel=1e-12)
